const assert = require("assert");
const { run } = require("tally");

run([
  () => assert.strictEqual(require("/app/calc.js").add(2, 3), 5),
  () => assert.strictEqual(require("/app/calc.js").add(-7, 3), -4),
]);
