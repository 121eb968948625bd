// command_line.cc - see command_line.h.
// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace postern {
namespace {

void Keep(CLI::App*) {}

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
  option_->check(CLI::Range(least, most));
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
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_->exit(error);
  }
  return std::nullopt;
}

}  // namespace postern
