// help.cc - --help and docs/tuning.md, generated from the option schema.
// SPDX-License-Identifier: Apache-2.0
#include "help.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/schema/options.h"

namespace postern::wrapper {
namespace {

constexpr size_t kHelpWidth = 100;
constexpr size_t kHelpIndent = 10;
constexpr size_t kOwnColumn = 22;

std::string Range(const OptionDesc& desc) {
  char text[kOptionMessageBytes];
  return OptionRange(desc, text, sizeof(text));
}

std::string EnvName(const OptionDesc& desc) {
  char text[kOptionMessageBytes];
  return OptionEnvName(desc, text, sizeof(text));
}

std::string Default(const OptionDesc& desc) {
  return *desc.default_text != '\0' ? desc.default_text : "(empty)";
}

std::string Wrapped(const std::string& text) {
  const std::string indent(kHelpIndent, ' ');
  std::istringstream words(text);
  std::string out;
  std::string line = indent;
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > kHelpWidth) {
      out += line + "\n";
      line = indent;
    }
    line += (line.size() > kHelpIndent ? " " : "") + word;
  }
  return out + line + "\n";
}

struct OwnOption {
  const char* name;
  const char* value;  // null: takes none
  const char* text;
};
constexpr OwnOption kOwnOptions[] = {
    {"profile", "P",
     "take the options of profile P (a name, or a file if it holds a '/'); else safe"},
    {"option", "K=V", "set one option; may be repeated"},
    {"strict", nullptr, "fail the call instead of falling back to the kernel (-o strict=on)"},
    {"verbose", nullptr, "say in a line whether COMMAND is accelerated, and log at level info"},
    {"version", nullptr, "print the version"},
    {"help", nullptr, "print this"},
};

const OwnOption& FindOwn(const char* name) {
  static const OwnOption kNone = {"", nullptr, ""};
  for (const OwnOption& own : kOwnOptions) {
    if (strcmp(own.name, name) == 0) return own;
  }
  return kNone;
}

// Those that are to be known have a text.
std::string OwnLines(const option* options) {
  std::ostringstream out;
  for (const option* each = options; each->name != nullptr; ++each) {
    const OwnOption& own = FindOwn(each->name);
    if (*own.text == '\0') continue;
    const bool has_letter = each->val > 0 && each->val < 256;
    std::string line =
        has_letter ? std::string("  -") + static_cast<char>(each->val) + ", " : "      ";
    line +=
        std::string("--") + each->name + (own.value != nullptr ? std::string(" ") + own.value : "");
    line.resize(std::max(line.size() + 1, kOwnColumn), ' ');
    out << line << own.text << "\n";
  }
  return out.str();
}

// Of -o: what a value may be, where these are words.
std::string Words(const OptionDesc& desc) {
  if (desc.kind == OptionKind::kBool) return "on off";
  std::string words = desc.kind == OptionKind::kEnum ? desc.unit : "";
  for (char& c : words) c = c == '|' ? ' ' : c;
  return words;
}

// '|' would end the cell of a table.
std::string Cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

}  // namespace

std::string UsageText() {
  return "usage: postern [--profile P] [-o key=value]... [--strict] [-v] COMMAND [ARG]...";
}

std::string HelpText(const option* options) {
  std::ostringstream out;
  out << UsageText() << "\n\n"
      << "Runs COMMAND with its same-host TCP connections carried through shared memory. Options "
         "stop at\n"
         "the first word that is not one: those behind it belong to the command.\n\n"
      << OwnLines(options) << "\n"
      << "Exit code: that of COMMAND; 2 wrong usage, 125 Postern cannot do its part, 126 COMMAND "
         "cannot be\n"
         "run, 127 COMMAND is not found.\n\n"
         "Options, later beats earlier: profile, environment (POSTERN_SPIN_USEC for spin.usec), "
         "-o.\n";
  for (size_t i = 0; i < kOptionCount; ++i) {
    const OptionDesc& desc = OptionAt(i);
    out << "\n  " << desc.key << " = " << Default(desc) << "   [" << Range(desc) << "]\n"
        << Wrapped(desc.text);
  }
  return out.str();
}

std::string CommandLineText(const option* options) {
  std::ostringstream out;
  out << "program\tpostern\trun a program with same-host TCP carried through shared memory\n";
  for (const option* each = options; each->name != nullptr; ++each) {
    const OwnOption& own = FindOwn(each->name);
    if (*own.text == '\0') continue;
    out << "option\t\t";
    if (each->val > 0 && each->val < 256) out << '-' << static_cast<char>(each->val) << ',';
    out << "--" << each->name << '\t' << (own.value != nullptr ? own.value : "") << '\t' << own.text
        << '\n';
  }
  for (size_t i = 0; i < kOptionCount; ++i) {
    const OptionDesc& desc = OptionAt(i);
    out << "key\t\t" << desc.key << '\t' << Words(desc) << '\t' << desc.text << '\n';
  }
  out << "command\n";
  return out.str();
}

std::string TuningText() {
  std::ostringstream out;
  out << "# Tuning\n\n"
         "<!-- Generated from lib/base/schema/options.def by `postern --dump-tuning-md` -->\n\n"
         "No option is needed for correctness: the defaults are safe. Values come, later beating\n"
         "earlier, from the profile (`--profile`), the environment and `-o key=value`. An unknown\n"
         "name or a value out of range is an error of the wrapper and a warning of the library.\n\n"
         "| option | default | values | environment | meaning |\n"
         "|---|---|---|---|---|\n";
  for (size_t i = 0; i < kOptionCount; ++i) {
    const OptionDesc& desc = OptionAt(i);
    out << "| `" << desc.key << "` | " << Default(desc) << " | " << Cell(Range(desc)) << " | `"
        << EnvName(desc) << "` | " << Cell(desc.text) << " |\n";
  }
  out << "\nProfiles are files of `key=value` lines; `#` begins a comment. Those that are "
         "installed:\n\n"
         "| profile | for |\n"
         "|---|---|\n"
         "| `safe` | the default; changes nothing |\n"
         "| `latency` | lowest round-trip time, with a core for each busy thread |\n"
         "| `throughput` | bulk transfer |\n"
         "| `nginx` | event-driven HTTP servers with many short connections |\n"
         "| `redis` | single-threaded request-response servers with many persistent clients |\n";
  return out.str();
}

}  // namespace postern::wrapper
