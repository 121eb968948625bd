// command_line.cc - see command_line.h.
// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <iostream>
#include <utility>

namespace postern {
namespace {

void Keep(CLI::App*) {}

constexpr const char* kDump = "--dump-command-line";

std::string Joined(const std::vector<std::string>& names, const char* dashes, std::string before) {
  for (const std::string& name : names) before += (before.empty() ? "" : ",") + (dashes + name);
  return before;
}

// Of one command and those below it: see packaging/completion.py, which reads it.
void Dump(const CLI::App& app, const std::string& path, std::ostream& out) {
  for (const CLI::Option* each : app.get_options()) {
    const std::string value = each->get_items_expected_max() > 0 ? each->get_type_name() : "";
    if (each->get_group().empty()) continue;
    if (each->nonpositional()) {
      const std::string names = Joined(each->get_snames(), "-", "");
      out << "option\t" << path << '\t' << Joined(each->get_lnames(), "--", names);
    } else {
      out << "word\t" << path << '\t' << each->get_name();
    }
    out << '\t' << value << '\t' << each->get_description() << '\n';
  }
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (each->get_group().empty()) continue;
    const std::string below = path + (path.empty() ? "" : " ") + each->get_name();
    out << "command\t" << below << "\t\t\t" << each->get_description() << '\n';
    Dump(*each, below, out);
  }
}

}  // namespace

using Item = CommandLine::Item;

Item& Item::Required() {
  option_->required();
  return *this;
}
Item& Item::Needs(const Item& other) {
  option_->needs(other.option_);
  return *this;
}
Item& Item::Range(uint32_t least, uint32_t most) {
  // CLI::Range would answer what is no number with the digits of the largest double.
  option_->check([least, most](const std::string& text) -> std::string {
    uint32_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && at == end && value >= least && value <= most) return "";
    return "'" + text + "' is no number from " + std::to_string(least) + " to " +
           std::to_string(most);
  });
  return *this;
}
Item& Item::Check(std::function<std::string(const std::string&)> complaint) {
  option_->check(std::move(complaint));
  return *this;
}
Item& Item::ShowDefault() {
  option_->capture_default_str();
  return *this;
}

CommandLine::CommandLine(const std::string& title) : app_(std::make_shared<CLI::App>(title)) {}
CommandLine::CommandLine(CLI::App* command) : app_(command, Keep) {}

Item CommandLine::Flag(const std::string& name, bool& to, const std::string& help) {
  return Item(app_->add_flag(name, to, help));
}
Item CommandLine::Option(const std::string& name, std::string& to, const std::string& help) {
  return Item(app_->add_option(name, to, help));
}
Item CommandLine::Option(const std::string& name, uint32_t& to, const std::string& help) {
  return Item(app_->add_option(name, to, help));
}
Item CommandLine::Option(const std::string& name, uint64_t& to, const std::string& help) {
  return Item(app_->add_option(name, to, help));
}
Item CommandLine::Option(const std::string& name, std::vector<std::string>& to,
                         const std::string& help) {
  return Item(app_->add_option(name, to, help));
}

void CommandLine::Version(const std::string& text) { app_->set_version_flag("--version", text); }

CommandLine CommandLine::Command(const std::string& name, const std::string& help) {
  app_->require_subcommand(1);
  CLI::App* const command = app_->add_subcommand(name, help);
  if (help.empty()) command->group("");
  return CommandLine(command);
}

void CommandLine::OptionsAnywhere() { app_->fallthrough(); }

bool CommandLine::IsGiven() const { return app_->parsed(); }

std::optional<int> CommandLine::Parse(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == kDump) {
    const std::string program = argv[0];
    std::cout << "program\t" << program.substr(program.rfind('/') + 1) << '\t'
              << app_->get_description() << '\n';
    Dump(*app_, "", std::cout);
    return 0;
  }
  try {
    app_->parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    // CLI11 would say that a command is missing, where one was given that there is not.
    const std::vector<std::string> extra = app_->remaining(true);
    if (extra.empty()) return app_->exit(error);
    std::cerr << "'" << extra.front() << "' is no command or option here\n"
              << "Run with --help for more information.\n";
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return app_->exit(error);
  }
  return std::nullopt;
}

}  // namespace postern
