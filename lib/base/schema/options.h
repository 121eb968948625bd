// options.h - every option of Postern as one plain struct, and the checked ways to fill it.
// SPDX-License-Identifier: Apache-2.0
//
// The schema is options.def. An option has a key ("spin.usec"), an environment name
// (POSTERN_SPIN_USEC) and a field (options.spin_usec). All three are derived from the one line in
// options.def.
//
// Where values come from, later beats earlier: defaults, profile file, environment, -o on the
// command line. The wrapper does the merging and hands the result to the program as POSTERN_*
// variables; the library and posternd read only those.
//
// This is linked into the preloaded object and runs in its constructor: no allocation, no
// exceptions, no stdio streams, no locale (numbers are parsed by hand), no global state. Every
// function is thread-safe as far as its arguments are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace postern {

// Bytes of a text option with its terminating NUL; kOptionTextMax characters fit.
inline constexpr size_t kOptionTextBytes = 256;
inline constexpr size_t kOptionTextMax = kOptionTextBytes - 1;
// Enough for the longest message that any function here writes.
inline constexpr size_t kOptionMessageBytes = 512;
// Longest accepted line of a profile file.
inline constexpr size_t kProfileLineMax = 512;

enum class OptionKind : uint8_t {
  kBool,    // on/off, yes/no, true/false, 1/0
  kInt,     // decimal
  kSize,    // bytes, with optional K, M or G (binary); a power of two, since ring positions are
            // masked
  kEnum,    // one word of a list; the field holds its position
  kString,  // any text without control characters
  kName,   // letters, digits, '.', '_' and '-', not beginning with '.': safe as part of a file name
  kPorts,  // "22,8000-8100"
};

enum class OptionErr : uint8_t {
  kOk = 0,
  kUnknown,   // no such option
  kBadValue,  // does not parse as what the option is
  kRange,     // parses, but is outside the range or too long
  kConflict,  // two options contradict each other
  kSyntax,    // a line of a profile that is not key=value
};

#define PSTN_OPTION_FIELD_Bool(name) int64_t name;
#define PSTN_OPTION_FIELD_Int(name) int64_t name;
#define PSTN_OPTION_FIELD_Size(name) int64_t name;
#define PSTN_OPTION_FIELD_Enum(name) int64_t name;
#define PSTN_OPTION_FIELD_String(name) char name[kOptionTextBytes];
#define PSTN_OPTION_FIELD_Name(name) char name[kOptionTextBytes];
#define PSTN_OPTION_FIELD_Ports(name) char name[kOptionTextBytes];

// Plain data, so that it can be copied into a shared segment as it is.
struct Options {
#define PSTN_OPTION(key, name, kind, unit, dflt, min, max, text) PSTN_OPTION_FIELD_##kind(name)
#include "base/schema/options.def"
#undef PSTN_OPTION
  // Bit i: option i (its position in options.def) was set explicitly, be it to its default.
  uint64_t given;
};

static_assert(std::is_trivially_copyable_v<Options> && std::is_standard_layout_v<Options>);

// Values of log.level; the order is that of options.def.
enum class LogLevel : int64_t { kNone = 0, kError, kWarn, kInfo, kDebug };

// Values of io_uring; the order is that of options.def.
enum class IoUring : int64_t { kDeny = 0, kAllow, kFollow };

struct OptionDesc {
  const char* key;
  const char* unit;  // for kEnum the words, separated by '|'
  const char* default_text;
  const char* text;
  int64_t min;  // texts: of the length
  int64_t max;
  size_t field_off;  // in Options
  OptionKind kind;
};

inline constexpr size_t kOptionCount = 0
#define PSTN_OPTION(key, name, kind, unit, dflt, min, max, text) +1
#include "base/schema/options.def"
#undef PSTN_OPTION
    ;
static_assert(kOptionCount <= 64, "Options::given has a bit for each option");

// The schema, in the order of options.def. `i` below kOptionCount.
[[nodiscard]] const OptionDesc& OptionAt(size_t i);
// Null when there is none. `key` may be any text.
[[nodiscard]] const OptionDesc* OptionFind(const char* key);
[[nodiscard]] bool OptionGiven(const Options& options, const OptionDesc& desc);

[[nodiscard]] Options OptionsDefault();

// Sets one option. On error `options` is unchanged and `message` (may be null) says what was wrong,
// with the valid range, or with the nearest known name. kUnknown, kBadValue, kRange.
[[nodiscard]] OptionErr OptionSet(Options& options, const char* key, const char* value,
                                  char* message, size_t message_bytes);
// What concerns several options at once; call it after the last OptionSet. kConflict.
[[nodiscard]] OptionErr OptionsCheck(const Options& options, char* message, size_t message_bytes);

// The value in a form that OptionSet accepts. Returns `text`.
const char* OptionFormat(const Options& options, const OptionDesc& desc, char* text,
                         size_t text_bytes);
// "0..1000000 us", "on or off", ...: what OptionSet would accept, in words. Returns `text`.
const char* OptionRange(const OptionDesc& desc, char* text, size_t text_bytes);
// "POSTERN_SPIN_USEC". Returns `text`.
const char* OptionEnvName(const OptionDesc& desc, char* text, size_t text_bytes);

// Called for each error, with a complete message; the option concerned keeps its earlier value.
using OptionReport = void (*)(void* context, const char* message);

// Takes every POSTERN_* variable of `envp` (null-terminated array; null: none). Those that the
// parts of Postern hand to each other (POSTERN_ATTACH, POSTERN_DAEMON, POSTERN_RUNTIME_DIR) are
// passed over. Returns the number of errors reported.
size_t OptionsLoadEnv(Options& options, const char* const* envp, OptionReport report,
                      void* context);

// Takes the text of a profile: lines of "key=value", blanks around both ignored, '#' begins a
// comment at the start of a line or after a blank. `name` is for the messages ("latency.conf:3:
// ..."). Returns the number of errors reported.
size_t OptionsLoadProfile(Options& options, const char* name, const char* text, size_t text_bytes,
                          OptionReport report, void* context);

// Whether `list` means ports ("80,8000-8999"); the empty list does.
[[nodiscard]] bool PortListIsValid(const char* list);
// Whether such a list holds `port`.
[[nodiscard]] bool PortListHas(const char* list, uint16_t port);

}  // namespace postern
