package broker

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed pom.xml
var pom []byte

//go:embed log4j2.properties
var log4j []byte

const copyDependencies = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

// findJava returns the java binary of JAVA_HOME, or of the path.
func findJava() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		return exec.LookPath(filepath.Join(home, "bin", "java"))
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("a real Kafka broker requires JDK 17 or newer: %w", err)
	}
	return java, nil
}

// fetch returns the folder with Kafka's jars, downloading them with Maven if necessary. A folder is complete once it has its
// final name, so several processes may download at the same time.
func fetch(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(pom)
	libs := filepath.Join(cache, "agrimill", "kafka-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(libs); err == nil {
		return libs, nil
	}
	if err := os.MkdirAll(filepath.Dir(libs), 0o700); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(filepath.Dir(libs), "kafka-fetching-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	pomFile, jars := filepath.Join(temp, "pom.xml"), filepath.Join(temp, "jars")
	if err := os.WriteFile(pomFile, pom, 0o600); err != nil {
		return "", err
	}
	maven, err := exec.LookPath("mvn")
	if err != nil {
		return "", fmt.Errorf("downloading a real Kafka broker requires Maven: %w", err)
	}
	out, err := exec.CommandContext(ctx, maven, "-B", "-q", "-f", pomFile, copyDependencies,
		"-DincludeScope=runtime", "-DoutputDirectory="+jars).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("fetch Kafka with Maven: %w\n%s", err, tail(out))
	}
	if err := os.Rename(jars, libs); err != nil && !errors.Is(err, os.ErrExist) {
		if _, statErr := os.Stat(libs); statErr != nil {
			return "", err
		}
	}
	return libs, nil
}
