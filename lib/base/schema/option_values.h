// SPDX-License-Identifier: Apache-2.0
// option_values.h - what values of options look like, by kind: text on its way into an Options.
//
// Each says whether the text is one, and writes the number. No locale, no errno.
#pragma once
#include <cstddef>
#include <cstdint>

namespace postern::option_values {

inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }
inline bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
inline char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
inline char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

bool ParseInt(const char* value, int64_t* number);
bool ParseSize(const char* value, int64_t* number);  // K, M, G
bool ParseBool(const char* value, int64_t* number);
// The word at `position` of "a|b|c", as start and length; false behind the last.
bool EnumWord(const char* words, int64_t position, const char** word, size_t* length);
bool ParseEnum(const char* words, const char* value, int64_t* number);
bool IsName(const char* value);
bool IsPlainText(const char* value);

// "64K"; the reverse of ParseSize.
const char* FormatSize(int64_t bytes, char* text, size_t text_bytes);

}  // namespace postern::option_values
