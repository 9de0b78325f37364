package redistest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestTLSIsAllThatItSpeaks(t *testing.T) {
	s := RealTLS(t)
	client := s.Client()
	recording := s.Monitor()
	if err := client.Set(ctx, "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if commands := recording.Stop(); len(commands) == 0 || commands[len(commands)-1].Name() != "SET" {
		t.Errorf("recorded %+v", commands)
	}
	opts, err := redis.ParseURL(s.URL())
	if err != nil || opts.TLSConfig == nil || opts.Addr != s.Addr {
		t.Errorf("URL %s: %v", s.URL(), err)
	}
	hasty := func(o *redis.Options) { o.MaxRetries, o.DialerRetries, o.ReadTimeout = -1, 1, time.Second }
	var unknown *tls.CertificateVerificationError
	stranger := s.Client(hasty, func(o *redis.Options) { o.TLSConfig = &tls.Config{} })
	if err := stranger.Ping(ctx).Err(); !errors.As(err, &unknown) {
		t.Errorf("who does not know the authority gets %v", err)
	}
	plain := s.Client(hasty, func(o *redis.Options) { o.TLSConfig = nil })
	if err := plain.Ping(ctx).Err(); err == nil {
		t.Error("it answers without TLS")
	}
	s.Restart()
	eventually(t, "the client gets through again", func() bool { return client.Ping(ctx).Err() == nil })
}

func TestTLSCanAskForACertificate(t *testing.T) {
	s := RealTLS(t, "--tls-auth-clients", "yes")
	if err := s.Client().Ping(ctx).Err(); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	nobody := s.Client(func(o *redis.Options) { o.TLSConfig.Certificates, o.MaxRetries, o.DialerRetries = nil, -1, 1 })
	if err := nobody.Ping(ctx).Err(); err == nil {
		t.Error("it takes a client without a certificate")
	}
}

// Java's trust managers want an issuer with a name.
func TestTheCertificatesNameTheirIssuer(t *testing.T) {
	made := NewTLS(t)
	for _, file := range []string{made.CAFile, made.CertFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil || certificate.Issuer.CommonName != "redistest authority" ||
			certificate.Subject.CommonName == "" {
			t.Errorf("%s: issued by %v for %v, %v", file, certificate.Issuer, certificate.Subject, err)
		}
	}
}

func TestAClusterSpeaksTLS(t *testing.T) {
	nodes := ClusterTLS(t, 3)
	client := nodes.ClusterClient()
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		if err := client.Set(ctx, key, "value", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if got := nodes.Owner(key).Client().Get(ctx, key).Val(); got != "value" {
			t.Errorf("the owner of %q holds %q", key, got)
		}
	}
}
