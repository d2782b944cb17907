package sshdial

import (
	"bytes"
	"crypto/dsa" //nolint:staticcheck // named to be refused
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"strings"

	"golang.org/x/crypto/ssh"

	"fleetdesk/internal/core/fault"
)

// keyMaterial is the user's key.
type keyMaterial struct {
	digest [sha256.Size]byte
	signer ssh.Signer
	// fingerprint is the public key's type and SHA256 fingerprint.
	fingerprint string
}

func readKey(path string) (*keyMaterial, error) {
	data, err := readFile(keyKind, path, maxKeyFile)
	if err != nil {
		return nil, err
	}
	return parseKey(path, data)
}

// parseKey parses a private key. Its errors are Permanent, say what the file
// holds in place of a usable key, and never quote it.
func parseKey(path string, data []byte) (*keyMaterial, error) {
	bad := func(format string, args ...any) error {
		return fault.Errorf(fault.Permanent, keyKind+" %s "+format, append([]any{path}, args...)...)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, bad("is empty")
	}
	block, err := privateBlock(data)
	if err != nil {
		return nil, bad("%w", err)
	}
	if strings.Contains(block.Type, "ENCRYPTED") {
		return nil, bad("%s", encrypted)
	}
	raw, err := ssh.ParseRawPrivateKey(pem.EncodeToMemory(block))
	if _, ok := errors.AsType[*ssh.PassphraseMissingError](err); ok {
		return nil, bad("%s", encrypted)
	}
	if err != nil {
		return nil, bad("has a PEM block %q that does not parse as a private key: %s", clean(block.Type), clean(err.Error()))
	}
	if _, ok := raw.(*dsa.PrivateKey); ok {
		return nil, bad("is a DSA key, which SSH servers no longer accept: make an ed25519 key")
	}
	signer, err := ssh.NewSignerFromKey(raw)
	if err != nil {
		return nil, bad("has a kind of key that SSH does not know (%T): make an ed25519, ecdsa or rsa key", raw)
	}
	pub := signer.PublicKey()
	if as, ok := signer.(ssh.AlgorithmSigner); ok && pub.Type() == ssh.KeyAlgoRSA {
		// Never SHA-1, which servers refuse.
		if signer, err = ssh.NewSignerWithAlgorithms(as, []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}); err != nil {
			return nil, bad("is an rsa key that cannot sign with SHA-2: %s", clean(err.Error()))
		}
	}
	return &keyMaterial{digest: digest(data), signer: signer, fingerprint: pub.Type() + " " + ssh.FingerprintSHA256(pub)}, nil
}

const encrypted = "is encrypted with a passphrase, and nobody is there to type it: use a key without one (ssh-keygen -p -N '' -f COPY removes it from a copy)"

// privateBlock finds the private key among the file's PEM blocks.
func privateBlock(data []byte) (*pem.Block, error) {
	var others []string
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			return block, nil
		}
		if others = append(others, clean(block.Type)); len(others) == 3 {
			break
		}
	}
	text := string(bytes.TrimSpace(data))
	switch {
	case len(others) > 0:
		return nil, errors.New("holds no private key, but " + strings.Join(others, ", "))
	case strings.HasPrefix(text, "ssh-") || strings.HasPrefix(text, "ecdsa-"):
		return nil, errors.New("holds a public key: name the private one (the file without .pub)")
	case strings.HasPrefix(text, "PuTTY-User-Key-File"):
		return nil, errors.New("is in PuTTY's format: convert it with puttygen -O private-openssh")
	case strings.Contains(text, "PRIVATE KEY-----"):
		return nil, errors.New("has a damaged PEM block: lines are missing or were joined when it was copied")
	default:
		return nil, errors.New("holds no PEM block (-----BEGIN … PRIVATE KEY-----)")
	}
}
