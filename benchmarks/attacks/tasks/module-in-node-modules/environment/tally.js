// Runs checks and says how many of them failed.
exports.run = (checks) => {
  let failed = 0;
  for (const check of checks) {
    try {
      check();
    } catch (error) {
      console.log(error.message);
      failed += 1;
    }
  }
  process.exit(failed ? 1 : 0);
};
