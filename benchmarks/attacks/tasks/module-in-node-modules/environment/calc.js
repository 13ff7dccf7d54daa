// The sum of two numbers.
exports.add = (a, b) => {
  throw new Error("not implemented");
};
