package admin_test

const testToken = "a-token-of-enough-length"
