package gatewaytest

// Everything secret that a [Server] makes up begins with one of these, so that a
// test, or a whole suite, can look for it in what was logged.
const (
	// SecretPrefix begins a client secret that was not configured.
	SecretPrefix = "gatewaytest-secret-"
	// TokenPrefix begins an access token.
	TokenPrefix = "gatewaytest-token-"
	// SignaturePrefix begins the signature in a payload URI.
	SignaturePrefix = "gatewaytest-signature-"
)
