// command_line.h - options and commands of a program. CLI11 is behind it, which a compiler takes
// five seconds to read and four programs need.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace postern {

class CommandLine {
 public:
  // What was added, for conditions on it.
  class Item {
   public:
    explicit Item(CLI::Option* option) : option_(option) {}
    Item& Required();
    Item& Needs(const Item& other);
    Item& Range(uint32_t least, uint32_t most);
    // `complaint(text)`: what is wrong with it; empty: nothing.
    Item& Check(std::function<std::string(const std::string&)> complaint);
    Item& ShowDefault();

   private:
    CLI::Option* option_;
  };

  explicit CommandLine(const std::string& title);
  // A `name` without dashes is a positional argument's.
  Item Flag(const std::string& name, bool& to, const std::string& help);
  Item Option(const std::string& name, std::string& to, const std::string& help);
  Item Option(const std::string& name, uint32_t& to, const std::string& help);
  Item Option(const std::string& name, uint64_t& to, const std::string& help);
  Item Option(const std::string& name, std::vector<std::string>& to, const std::string& help);
  void Version(const std::string& text);

  // A command of its own, one of which has to be given. Without `help` it is not shown.
  CommandLine Command(const std::string& name, const std::string& help);
  // Options of this command line may come behind commands, which are added after this.
  void OptionsAnywhere();
  bool IsGiven() const;

  // Alone, --dump-command-line prints all that was added, for packaging/completion.py.
  // The program's exit code, where there is nothing to be done: an error, or help, which was said.
  std::optional<int> Parse(int argc, char** argv);

 private:
  explicit CommandLine(CLI::App* command);

  std::shared_ptr<CLI::App> app_;  // a command belongs to the line that it was added to
};

}  // namespace postern
