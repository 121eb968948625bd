// SPDX-License-Identifier: Apache-2.0
// option_values.cc - see option_values.h; lists of ports.
#include "base/schema/option_values.h"

#include <cstdio>
#include <cstring>

#include "base/schema/options.h"

namespace postern {
namespace option_values {
namespace {

bool EqualNoCase(const char* a, const char* b) {
  for (; *a != '\0' && Lower(*a) == Lower(*b); ++a) ++b;
  return Lower(*a) == Lower(*b);
}

// Decimal digits with an optional minus; moves *at behind them. False on no digits or overflow.
bool ParseDecimal(const char** at, int64_t* number) {
  const char* p = *at;
  const bool is_negative = *p == '-';
  if (is_negative) ++p;
  if (!IsDigit(*p)) return false;
  int64_t value = 0;
  for (; IsDigit(*p); ++p) {
    if (__builtin_mul_overflow(value, int64_t{10}, &value)) return false;
    if (__builtin_add_overflow(value, int64_t{*p - '0'}, &value)) return false;
  }
  *number = is_negative ? -value : value;
  *at = p;
  return true;
}

// One "port" or "low-high" at *at, which is moved behind it.
bool ParsePortRange(const char** at, int64_t* low, int64_t* high) {
  if (**at == '-' || !ParseDecimal(at, low)) return false;
  *high = *low;
  if (**at == '-') {
    ++*at;
    if (**at == '-' || !ParseDecimal(at, high)) return false;
  }
  return *low >= 1 && *low <= *high && *high <= UINT16_MAX;
}

}  // namespace

bool ParseInt(const char* value, int64_t* number) {
  return ParseDecimal(&value, number) && *value == '\0';
}

bool ParseSize(const char* value, int64_t* number) {
  if (!ParseDecimal(&value, number)) return false;
  int64_t unit = 1;
  switch (Upper(*value)) {
    case 'K':
      unit = int64_t{1} << 10;
      break;
    case 'M':
      unit = int64_t{1} << 20;
      break;
    case 'G':
      unit = int64_t{1} << 30;
      break;
    default:
      break;
  }
  if (unit != 1) ++value;
  return *value == '\0' && !__builtin_mul_overflow(*number, unit, number);
}

bool ParseBool(const char* value, int64_t* number) {
  constexpr const char* kWords[] = {"off", "on", "no", "yes", "false", "true", "0", "1"};
  for (size_t i = 0; i < sizeof(kWords) / sizeof(kWords[0]); ++i) {
    if (!EqualNoCase(value, kWords[i])) continue;
    *number = static_cast<int64_t>(i & 1);
    return true;
  }
  return false;
}

bool EnumWord(const char* words, int64_t position, const char** word, size_t* length) {
  for (; position > 0; --position) {
    words = strchr(words, '|');
    if (words == nullptr) return false;
    ++words;
  }
  *word = words;
  *length = strcspn(words, "|");
  return true;
}

bool ParseEnum(const char* words, const char* value, int64_t* number) {
  const char* word = nullptr;
  size_t length = 0;
  for (int64_t i = 0; EnumWord(words, i, &word, &length); ++i) {
    if (strlen(value) != length || strncmp(value, word, length) != 0) continue;
    *number = i;
    return true;
  }
  return false;
}

bool IsName(const char* value) {
  if (*value == '.') return false;
  for (; *value != '\0'; ++value) {
    const char c = Lower(*value);
    if (!(c >= 'a' && c <= 'z') && !IsDigit(c) && strchr("._-", c) == nullptr) return false;
  }
  return true;
}

bool IsPlainText(const char* value) {
  for (; *value != '\0'; ++value) {
    const auto c = static_cast<unsigned char>(*value);
    if (c < ' ' || c == 0x7f) return false;
  }
  return true;
}

const char* FormatSize(int64_t bytes, char* text, size_t text_bytes) {
  constexpr const char* kUnits[] = {"", "K", "M", "G"};
  size_t unit = 0;
  for (; unit < 3 && bytes != 0 && bytes % 1024 == 0; ++unit) bytes /= 1024;
  snprintf(text, text_bytes, "%lld%s", static_cast<long long>(bytes), kUnits[unit]);
  return text;
}

}  // namespace option_values

bool PortListIsValid(const char* value) {
  if (*value == '\0') return true;
  int64_t low = 0;
  int64_t high = 0;
  while (option_values::ParsePortRange(&value, &low, &high)) {
    if (*value == '\0') return true;
    if (*value != ',') return false;
    ++value;
  }
  return false;
}

bool PortListHas(const char* list, uint16_t port) {
  int64_t low = 0;
  int64_t high = 0;
  while (*list != '\0' && option_values::ParsePortRange(&list, &low, &high)) {
    if (port >= low && port <= high) return true;
    if (*list == ',') ++list;
  }
  return false;
}

}  // namespace postern
