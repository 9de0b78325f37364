package rls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/tls/certprovider"
	"google.golang.org/grpc/credentials/tls/certprovider/pemfile"
)

// tls.go makes the credentials of the gRPC server from files, which are read again.

// A TLS has files in PEM format. Its zero value means no encryption.
type TLS struct {
	Cert, Key string        // certificate of the server, and its key
	ClientCA  string        // whose certificates clients must have; "": they need none
	Client    string        // name in the certificate of clients; "": any
	Every     time.Duration // between two reads of the files
}

// Check returns an error if the files cannot be used together.
func (t TLS) Check() error {
	switch {
	case t == TLS{Every: t.Every}:
		return nil
	case t.Cert == "" || t.Key == "":
		return errors.New("--tls-cert and --tls-key are needed together, and for --tls-client-ca")
	case t.Client != "" && t.ClientCA == "":
		return errors.New("--tls-client-name needs --tls-client-ca")
	}
	if _, err := tls.LoadX509KeyPair(t.Cert, t.Key); err != nil {
		return fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	if t.ClientCA == "" {
		return nil
	}
	text, err := os.ReadFile(t.ClientCA)
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(text) {
		err = errors.New("no certificate in " + t.ClientCA)
	}
	if err != nil {
		return fmt.Errorf("--tls-client-ca: %w", err)
	}
	return nil
}

// credentials returns the credentials of the server, and a function that ends the reads of the
// files. A connection has the certificates of the time at which it begins. If new files cannot be
// used, the old certificates stay.
func (t TLS) credentials() (credentials.TransportCredentials, func(), error) {
	provider, err := pemfile.NewProvider(pemfile.Options{
		CertFile: t.Cert, KeyFile: t.Key, RootFile: t.ClientCA, RefreshDuration: t.Every,
	})
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			material, err := provider.KeyMaterial(hello.Context())
			if err != nil {
				return nil, err
			}
			return t.config(material), nil
		},
	}), provider.Close, nil
}

// config returns the configuration of a connection.
func (t TLS) config(material *certprovider.KeyMaterial) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: material.Certs, NextProtos: []string{"h2"}}
	if t.ClientCA != "" {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, material.Roots
	}
	if t.Client != "" {
		c.VerifyConnection = func(s tls.ConnectionState) error { return s.PeerCertificates[0].VerifyHostname(t.Client) }
	}
	return c
}
