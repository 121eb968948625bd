// SPDX-License-Identifier: Apache-2.0
// conform.h - the actor of the conformance run: reads socket calls as lines of text, makes them,
// prints what came of each.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
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
extern const Entry kSocketCommands[];   // making, naming, ending
extern const Entry kNameCommands[];     // dup, close_range, flags, descriptors over a socket
extern const Entry kOptionCommands[];   // getsockopt, setsockopt, ioctl
extern const Entry kDataCommands[];     // bytes
extern const Entry kPipeCommands[];     // pipes and files on the other end, ancillary data
extern const Entry kEventCommands[];    // poll, select, epoll
extern const Entry kProcessCommands[];  // fork, exec, spawn
extern const Entry kSignalCommands[];   // handlers, masks, timers, owners
extern const Entry kMemoryCommands[];   // memory that is not there
extern const Entry kRingCommands[];     // by an io_uring

std::string Run(const Args& words);     // one command
std::string RunAll(const Args& words);  // commands separated by ";", results by "|"
Args Tail(const Args& words, size_t from);

// Descriptors have names, not numbers: numbers are nobody's promise (but the lowest free one is:
// see `dup` in the cases).
int Fd(const std::string& name);
void SetFd(const std::string& name, int fd);
std::map<std::string, int> AllFds();

std::string Errno();                                // "-1 EAGAIN"
std::string Outcome(long result);                   // the number, or Errno() when negative
std::string Made(const std::string& name, int fd);  // "ok" and the name is set, or Errno()
std::string Data(const std::string& bytes);         // quoted, or length and hash
std::string Expand(const std::string& text);        // "ab*3" is "ababab"
int MessageFlags(const Args& args, size_t from);    // PEEK, WAITALL, ...
long Number(const std::string& text);
void* Nowhere();      // an address where no memory is, which the compiler does not see through
void CatchSignals();  // the handlers that a script starts with

// The tags of members of event sets, which an image that is exec'd has to know as well.
void ForgetTags();
void SetTag(const std::string& name, uint64_t tag);
std::map<std::string, uint64_t> AllTags();

bool Inherit(const std::string& word);  // takes `fd:NAME=N` and `tag:NAME=N`

// xa and xb, ends of a Unix socket between the actors: open from the start to the end.
bool IsLine(const std::string& name);
void DrainLines();

}  // namespace conform
