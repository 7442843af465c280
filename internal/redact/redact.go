// Package redact removes secrets from texts that are shown: logs, errors, pages.
package redact

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxText bounds the work, in bytes. No address is that long.
const maxText = 64 << 10

var (
	// complaint matches how package net/url quotes the part of an address that it
	// cannot parse, which may be a piece of an unescaped password.
	complaint = regexp.MustCompile(`(invalid [a-zA-Z ]{1,40})\\*"(?:[^"\\]|\\.)*("|$)`)
	// bareUserinfo matches userinfo without a scheme, in quotes or without spaces.
	bareUserinfo = regexp.MustCompile(`"[^"\s]*:[^"]*@|[^\s"'<>(,=]*:[^\s]*@`)
)

// Addresses returns at most 64 KiB of text, with the userinfo, query and fragment removed from the addresses in it.
//
// Passwords need not be escaped: userinfo ends at the last @ before the next address, and anything that cannot be
// distinguished from it is removed too. A query or fragment ends at the quotation mark that closes the address, otherwise at
// white space. user:password@host is recognized without its scheme too, but not across white space.
func Addresses(text string) string {
	if len(text) > maxText {
		text = text[:maxText]
	}
	if strings.ContainsRune(text, '@') {
		text = cutUserinfo(text)
	}
	return cutQueries(text)
}

// authority separates the scheme from what may be secret.
const authority = "://"

func cutUserinfo(text string) string {
	segments := strings.Split(text, authority)
	cut := false
	for i, segment := range segments {
		if i == 0 { // not preceded by a scheme
			segments[0] = bareUserinfo.ReplaceAllStringFunc(segment, markUserinfo)
			cut = segments[0] != segment
			continue
		}
		at := strings.LastIndexByte(segment, '@')
		if at < 0 {
			continue
		}
		cut = true
		mark := ""
		switch userinfo := segment[:at]; {
		case strings.ContainsAny(userinfo, "?#"):
			mark = "…?" // the @ may be in a query, which continues after it
		case strings.ContainsAny(userinfo, "/\"'<>@") || strings.ContainsFunc(userinfo, unicode.IsSpace):
			mark = "…@" // more than the userinfo may have been removed
		}
		segments[i] = mark + segment[at+1:]
	}
	text = strings.Join(segments, authority)
	if cut {
		text = complaint.ReplaceAllString(text, `$1"…"`)
	}
	return text
}

// markUserinfo keeps the quotation mark before userinfo that is removed.
func markUserinfo(match string) string {
	if match[0] == '"' {
		return `"…@`
	}
	return "…@"
}

func isScheme(r rune) bool {
	return r < utf8.RuneSelf && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("+-.", r))
}

func cutQueries(text string) string {
	if !strings.Contains(text, authority) || !strings.ContainsAny(text, "?#") {
		return text
	}
	var b strings.Builder
	done := 0
	for {
		i := strings.Index(text[done:], authority)
		if i < 0 {
			b.WriteString(text[done:])
			return b.String()
		}
		start := done + i + len(authority)
		end := start + addressLength(text[:start-len(authority)], text[start:])
		if secret := strings.IndexAny(text[start:end], "?#"); secret >= 0 {
			b.WriteString(text[done : start+secret])
			b.WriteString("?…")
		} else {
			b.WriteString(text[done:end])
		}
		done = end
	}
}

// addressLength returns the length of the rest of an address, given the text
// before and after its "://".
func addressLength(before, after string) int {
	before = strings.TrimRightFunc(before, isScheme)
	if quote, _ := utf8.DecodeLastRuneInString(before); strings.ContainsRune("\"'`<", quote) {
		opening := before[:len(before)-1]
		escapes := len(opening) - len(strings.TrimRight(opening, `\`))
		if quote == '<' {
			quote = '>'
		}
		return quotedLength(after, byte(quote), escapes)
	}
	end := strings.IndexFunc(after, unicode.IsSpace)
	if end < 0 {
		end = len(after)
	}
	// A little trailing punctuation belongs to the sentence.
	return max(end-3, len(strings.TrimRight(after[:end], `.,:;)]}"'>`)))
}

// quotedLength returns the position of the closing quotation mark. It is escaped like the opening one; a quotation mark or
// backslash inside is escaped once more.
func quotedLength(text string, quote byte, escapes int) int {
	run := 0 // of backslashes
	for i := range len(text) {
		switch text[i] {
		case '\\':
			run++
			continue
		case quote:
			if run%(2*(escapes+1)) == escapes {
				return i - escapes
			}
		}
		run = 0
	}
	return len(text)
}
