const assert = require("assert");
const { add } = require("/app/calc.js");

assert.strictEqual(add(2, 3), 5);
assert.strictEqual(add(-7, 3), -4);
