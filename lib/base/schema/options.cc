// SPDX-License-Identifier: Apache-2.0
// options.cc - the option table, and loading from environment and profile files.
#include "base/schema/options.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/schema/option_values.h"

namespace postern {
namespace {

using option_values::EnumWord;
using option_values::FormatSize;
using option_values::IsBlank;
using option_values::IsName;
using option_values::IsPlainText;
using option_values::Lower;
using option_values::ParseBool;
using option_values::ParseEnum;
using option_values::ParseInt;
using option_values::ParseSize;
using option_values::Upper;

constexpr char kEnvPrefix[] = "POSTERN_";
constexpr size_t kEnvPrefixLength = sizeof(kEnvPrefix) - 1;
// What the parts of Postern hand to each other (POSTERN_ATTACH: across exec, by the library); not
// options.
constexpr const char* kEnvReserved[] = {"POSTERN_ATTACH", "POSTERN_DAEMON", "POSTERN_RUNTIME_DIR"};
// Keys longer than this are never near to a known one, and are cut in messages.
constexpr size_t kKeyMax = 63;
// A typing error is at most this many edits away from what was meant.
constexpr size_t kTypoEditsMax = 3;
constexpr int kShownValueMax = 80;

constexpr OptionDesc kOptions[] = {
#define PSTN_OPTION(key, name, kind, unit, dflt, min, max, text) \
  {key, unit, dflt, text, min, max, offsetof(Options, name), OptionKind::k##kind},
#include "base/schema/options.def"
#undef PSTN_OPTION
};
static_assert(sizeof(kOptions) / sizeof(kOptions[0]) == kOptionCount);

constexpr bool TextLengthsFit() {
  for (const OptionDesc& desc : kOptions) {
    const bool is_text = desc.kind >= OptionKind::kString;
    if (is_text && desc.max > static_cast<int64_t>(kOptionTextMax)) return false;
  }
  return true;
}
static_assert(TextLengthsFit(), "a text option longer than its field");

__attribute__((format(printf, 3, 4))) void Say(char* message, size_t message_bytes,
                                               const char* format, ...) {
  if (message == nullptr || message_bytes == 0) return;
  va_list args;
  va_start(args, format);
  vsnprintf(message, message_bytes, format, args);
  va_end(args);
}

int64_t* NumberOf(Options& options, const OptionDesc& desc) {
  return reinterpret_cast<int64_t*>(reinterpret_cast<char*>(&options) + desc.field_off);
}
const int64_t* NumberOf(const Options& options, const OptionDesc& desc) {
  return reinterpret_cast<const int64_t*>(reinterpret_cast<const char*>(&options) + desc.field_off);
}
char* TextOf(Options& options, const OptionDesc& desc) {
  return reinterpret_cast<char*>(&options) + desc.field_off;
}
const char* TextOf(const Options& options, const OptionDesc& desc) {
  return reinterpret_cast<const char*>(&options) + desc.field_off;
}

size_t IndexOf(const OptionDesc& desc) { return static_cast<size_t>(&desc - kOptions); }

// Whether the value parses as the kind of the option; numbers into *number.
bool Parse(const OptionDesc& desc, const char* value, int64_t* number) {
  switch (desc.kind) {
    case OptionKind::kBool:
      return ParseBool(value, number);
    case OptionKind::kInt:
      return ParseInt(value, number);
    case OptionKind::kSize:
      return ParseSize(value, number);
    case OptionKind::kEnum:
      return ParseEnum(desc.unit, value, number);
    case OptionKind::kString:
      return IsPlainText(value);
    case OptionKind::kName:
      return IsName(value);
    case OptionKind::kPorts:
      return PortListIsValid(value);
  }
  return false;
}

bool IsText(const OptionDesc& desc) { return desc.kind >= OptionKind::kString; }

bool IsInRange(const OptionDesc& desc, int64_t number) {
  if (number < desc.min || number > desc.max) return false;
  return desc.kind != OptionKind::kSize || (number & (number - 1)) == 0;
}

// Levenshtein distance; SIZE_MAX when `typed` is too long to be meant as a key.
size_t Distance(const char* typed, const char* key) {
  const size_t typed_length = strlen(typed);
  const size_t key_length = strlen(key);
  if (typed_length > kKeyMax || key_length > kKeyMax) return SIZE_MAX;
  size_t row[kKeyMax + 1];
  for (size_t j = 0; j <= key_length; ++j) row[j] = j;
  for (size_t i = 1; i <= typed_length; ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= key_length; ++j) {
      const size_t replaced = diagonal + (Lower(typed[i - 1]) == key[j - 1] ? 0 : 1);
      diagonal = row[j];
      const size_t longer = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
      row[j] = replaced < longer ? replaced : longer;
    }
  }
  return row[key_length];
}

// The known key that was probably meant; null when none is near.
const char* NearestKey(const char* typed) {
  const char* nearest = nullptr;
  size_t best = kTypoEditsMax + 1;
  for (const OptionDesc& desc : kOptions) {
    // A forgotten group ("usec") or a forgotten ending ("spin.us") is a likely slip too, but ranks
    // behind a real near miss.
    size_t distance = Distance(typed, desc.key);
    const char* dot = strchr(desc.key, '.');
    const bool is_part = dot != nullptr && strcmp(dot + 1, typed) == 0;
    if (distance > kTypoEditsMax && is_part) distance = kTypoEditsMax;
    if (distance >= best) continue;
    best = distance;
    nearest = desc.key;
  }
  return nearest;
}

// "spin.usec" -> 'S','P','I','N','_',...
char EnvChar(char c) { return c == '.' ? '_' : Upper(c); }

const OptionDesc* FindByEnv(const char* name, size_t name_length) {
  for (const OptionDesc& desc : kOptions) {
    if (strlen(desc.key) != name_length) continue;
    size_t i = 0;
    while (i < name_length && EnvChar(desc.key[i]) == name[i]) ++i;
    if (i == name_length) return &desc;
  }
  return nullptr;
}

bool IsReservedEnv(const char* variable, size_t name_length) {
  for (const char* reserved : kEnvReserved) {
    if (strlen(reserved) == name_length && strncmp(variable, reserved, name_length) == 0)
      return true;
  }
  return false;
}

// Copies what the environment calls an option into the form of a key, for the search of the nearest
// one.
void EnvToKey(const char* name, size_t name_length, char (&key)[kKeyMax + 1]) {
  const size_t length = name_length < kKeyMax ? name_length : kKeyMax;
  for (size_t i = 0; i < length; ++i) key[i] = name[i] == '_' ? '.' : Lower(name[i]);
  key[length] = '\0';
}

OptionErr LoadVariable(Options& options, const char* variable, char* message,
                       size_t message_bytes) {
  const char* equals = strchr(variable, '=');
  if (equals == nullptr) return OptionErr::kOk;
  const auto variable_length = static_cast<size_t>(equals - variable);
  if (IsReservedEnv(variable, variable_length)) return OptionErr::kOk;
  const char* name = variable + kEnvPrefixLength;
  const size_t name_length = variable_length - kEnvPrefixLength;
  const OptionDesc* desc = FindByEnv(name, name_length);
  if (desc != nullptr) return OptionSet(options, desc->key, equals + 1, message, message_bytes);
  char key[kKeyMax + 1];
  EnvToKey(name, name_length, key);
  const char* nearest = NearestKey(key);
  char meant[kKeyMax + sizeof(kEnvPrefix)] = "";
  if (nearest != nullptr) OptionEnvName(*OptionFind(nearest), meant, sizeof(meant));
  const int shown =
      variable_length < kShownValueMax ? static_cast<int>(variable_length) : kShownValueMax;
  Say(message, message_bytes, "unknown variable '%.*s'%s%s%s", shown, variable,
      nearest != nullptr ? "; did you mean '" : "", meant, nearest != nullptr ? "'?" : "");
  return OptionErr::kUnknown;
}

// Cuts a comment off: '#' at the start of the line or after a blank.
size_t WithoutComment(const char* line, size_t length) {
  for (size_t i = 0; i < length; ++i) {
    if (line[i] == '#' && (i == 0 || IsBlank(line[i - 1]))) return i;
  }
  return length;
}

void Trim(char*& begin, char* end) {
  while (end > begin && IsBlank(end[-1])) --end;
  *end = '\0';
  while (IsBlank(*begin)) ++begin;
}

OptionErr LoadLine(Options& options, const char* line, size_t length, char* message,
                   size_t message_bytes) {
  char copy[kProfileLineMax + 1];
  length = WithoutComment(line, length);
  if (length > kProfileLineMax || memchr(line, '\0', length) != nullptr) {
    Say(message, message_bytes, "not a line of text, or longer than %zu characters",
        kProfileLineMax);
    return OptionErr::kSyntax;
  }
  memcpy(copy, line, length);
  char* key = copy;
  Trim(key, copy + length);
  if (*key == '\0') return OptionErr::kOk;
  char* equals = strchr(key, '=');
  if (equals == nullptr || equals == key) {
    Say(message, message_bytes, "expected key=value, got '%.*s'", kShownValueMax, key);
    return OptionErr::kSyntax;
  }
  char* value = equals + 1;
  Trim(value, value + strlen(value));
  Trim(key, equals);
  return OptionSet(options, key, value, message, message_bytes);
}

}  // namespace

const OptionDesc& OptionAt(size_t i) { return kOptions[i < kOptionCount ? i : 0]; }

const OptionDesc* OptionFind(const char* key) {
  for (const OptionDesc& desc : kOptions) {
    if (strcmp(desc.key, key) == 0) return &desc;
  }
  return nullptr;
}

bool OptionGiven(const Options& options, const OptionDesc& desc) {
  return (options.given >> IndexOf(desc) & 1) != 0;
}

Options OptionsDefault() {
  Options options{};
  for (const OptionDesc& desc : kOptions) {
    // Cannot fail: the unit test sets each default by itself.
    (void)OptionSet(options, desc.key, desc.default_text, nullptr, 0);
  }
  options.given = 0;
  return options;
}

OptionErr OptionSet(Options& options, const char* key, const char* value, char* message,
                    size_t message_bytes) {
  const OptionDesc* desc = OptionFind(key);
  if (desc == nullptr) {
    const char* nearest = NearestKey(key);
    Say(message, message_bytes, "unknown option '%.*s'%s%s%s", static_cast<int>(kKeyMax), key,
        nearest != nullptr ? "; did you mean '" : "", nearest != nullptr ? nearest : "",
        nearest != nullptr ? "'?" : "");
    return OptionErr::kUnknown;
  }
  int64_t number = 0;
  const bool is_parsed = Parse(*desc, value, &number);
  if (IsText(*desc)) number = static_cast<int64_t>(strlen(value));
  if (!is_parsed || !IsInRange(*desc, number)) {
    char range[kOptionMessageBytes];
    Say(message, message_bytes, "option '%s': '%.*s' is %s; expected %s", key, kShownValueMax,
        value, is_parsed ? "out of range" : "not valid", OptionRange(*desc, range, sizeof(range)));
    return is_parsed ? OptionErr::kRange : OptionErr::kBadValue;
  }
  if (IsText(*desc)) {
    memcpy(TextOf(options, *desc), value, static_cast<size_t>(number) + 1);
  } else {
    *NumberOf(options, *desc) = number;
  }
  options.given |= uint64_t{1} << IndexOf(*desc);
  return OptionErr::kOk;
}

OptionErr OptionsCheck(const Options& options, char* message, size_t message_bytes) {
  if (options.ring_min <= options.ring_max) return OptionErr::kOk;
  char low[32];
  char high[32];
  Say(message, message_bytes, "option 'ring.min' (%s) is larger than 'ring.max' (%s)",
      FormatSize(options.ring_min, low, sizeof(low)),
      FormatSize(options.ring_max, high, sizeof(high)));
  return OptionErr::kConflict;
}

const char* OptionFormat(const Options& options, const OptionDesc& desc, char* text,
                         size_t text_bytes) {
  if (IsText(desc)) {
    snprintf(text, text_bytes, "%s", TextOf(options, desc));
    return text;
  }
  const int64_t number = *NumberOf(options, desc);
  const char* word = "";
  size_t length = 0;
  switch (desc.kind) {
    case OptionKind::kBool:
      snprintf(text, text_bytes, "%s", number != 0 ? "on" : "off");
      break;
    case OptionKind::kSize:
      FormatSize(number, text, text_bytes);
      break;
    case OptionKind::kEnum:
      (void)EnumWord(desc.unit, number, &word, &length);
      snprintf(text, text_bytes, "%.*s", static_cast<int>(length), word);
      break;
    default:
      snprintf(text, text_bytes, "%lld", static_cast<long long>(number));
      break;
  }
  return text;
}

const char* OptionRange(const OptionDesc& desc, char* text, size_t text_bytes) {
  const auto min = static_cast<long long>(desc.min);
  const auto max = static_cast<long long>(desc.max);
  char low[32];
  char high[32];
  switch (desc.kind) {
    case OptionKind::kBool:
      snprintf(text, text_bytes, "on or off");
      break;
    case OptionKind::kInt:
      snprintf(text, text_bytes, "%lld..%lld %s", min, max, desc.unit);
      break;
    case OptionKind::kSize:
      snprintf(text, text_bytes, "%s..%s, a power of two", FormatSize(min, low, sizeof(low)),
               FormatSize(max, high, sizeof(high)));
      break;
    case OptionKind::kEnum:
      snprintf(text, text_bytes, "one of %s", desc.unit);
      break;
    case OptionKind::kString:
      snprintf(text, text_bytes, "a text of up to %lld characters", max);
      break;
    case OptionKind::kName:
      snprintf(text, text_bytes, "up to %lld letters, digits, '_', '-' and '.'", max);
      break;
    case OptionKind::kPorts:
      snprintf(text, text_bytes, "ports and ranges like 22,8000-8100");
      break;
  }
  return text;
}

const char* OptionEnvName(const OptionDesc& desc, char* text, size_t text_bytes) {
  snprintf(text, text_bytes, "%s%s", kEnvPrefix, desc.key);
  const size_t length = strnlen(text, text_bytes);
  for (size_t i = kEnvPrefixLength; i < length; ++i) text[i] = EnvChar(text[i]);
  return text;
}

size_t OptionsLoadEnv(Options& options, const char* const* envp, OptionReport report,
                      void* context) {
  size_t error_count = 0;
  char message[kOptionMessageBytes];
  for (; envp != nullptr && *envp != nullptr; ++envp) {
    if (strncmp(*envp, kEnvPrefix, kEnvPrefixLength) != 0) continue;
    if (LoadVariable(options, *envp, message, sizeof(message)) == OptionErr::kOk) continue;
    ++error_count;
    report(context, message);
  }
  return error_count;
}

size_t OptionsLoadProfile(Options& options, const char* name, const char* text, size_t text_bytes,
                          OptionReport report, void* context) {
  size_t error_count = 0;
  size_t line_number = 1;
  for (size_t at = 0; at < text_bytes; ++line_number) {
    const char* line = text + at;
    const void* newline = memchr(line, '\n', text_bytes - at);
    const size_t length = newline != nullptr
                              ? static_cast<size_t>(static_cast<const char*>(newline) - line)
                              : text_bytes - at;
    at += length + 1;
    char detail[kOptionMessageBytes];
    if (LoadLine(options, line, length, detail, sizeof(detail)) == OptionErr::kOk) continue;
    char message[kOptionMessageBytes + 128];
    snprintf(message, sizeof(message), "%.100s:%zu: %s", name, line_number, detail);
    ++error_count;
    report(context, message);
  }
  return error_count;
}

}  // namespace postern
