// help.cc - --help and docs/tuning.md, generated from the option schema.
// SPDX-License-Identifier: Apache-2.0
#include "help.h"

#include <sstream>

#include "base/schema/options.h"

namespace postern::wrapper {
namespace {

constexpr size_t kHelpWidth = 100;
constexpr size_t kHelpIndent = 10;

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

std::string HelpText() {
  std::ostringstream out;
  out << UsageText() << "\n\n"
      << "Runs COMMAND with its same-host TCP connections carried through shared memory. Options "
         "stop at\n"
         "the first word that is not one: those behind it belong to the command.\n\n"
         "  -p, --profile P     take the options of profile P (a name, or a file if it holds a "
         "'/');\n"
         "                      default: safe\n"
         "  -o, --option K=V    set one option; may be repeated\n"
         "      --strict        fail the call instead of falling back to the kernel (-o "
         "strict=on)\n"
         "  -v, --verbose       say what is done, and log at level info\n"
         "      --version       print the version\n"
         "  -h, --help          print this\n\n"
         "Exit code: that of COMMAND; 2 wrong usage, 125 Postern cannot do its part, 126 COMMAND "
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
