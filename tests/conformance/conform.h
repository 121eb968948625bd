// SPDX-License-Identifier: Apache-2.0
// conform.h - the actor of the conformance run: reads socket calls as lines of text, makes them,
// prints what came of each.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace conform {

using Args = std::vector<std::string>;  // the words after the command's name
using Command = std::string (*)(const Args& args);

struct Entry {
  const char* name;
  size_t args_min;
  Command run;
};

// Tables end with a null name.
extern const Entry kSocketCommands[];  // making, naming, ending, options
extern const Entry kDataCommands[];    // bytes
extern const Entry kEventCommands[];   // poll, select, epoll

// Descriptors have names, not numbers: numbers are nobody's promise (but the lowest free one is:
// see `dup` in the cases).
int Fd(const std::string& name);
void SetFd(const std::string& name, int fd);

std::string Errno();                                // "-1 EAGAIN"
std::string Outcome(long result);                   // the number, or Errno() when negative
std::string Made(const std::string& name, int fd);  // "ok" and the name is set, or Errno()
std::string Data(const std::string& bytes);         // quoted, or length and hash
std::string Expand(const std::string& text);        // "ab*3" is "ababab"
int MessageFlags(const Args& args, size_t from);    // PEEK, WAITALL, ...
long Number(const std::string& text);
void ForgetTags();  // members of event sets are named anew

}  // namespace conform
