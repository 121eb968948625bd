// SPDX-License-Identifier: Apache-2.0
// mistakes.h - frame of the mistake tests: a named pair of a server and a client, and small socket
// helpers that do or die.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace mistakes {

struct Case {
  const char* name;
  void (*serve)(int listener);  // the listener is blocking; returns when content
  void (*connect)(uint16_t port);
};

extern const Case kProcessCases[];  // fork, exec, spawn, death; ends with a null name
extern const Case kCallCases[];     // calls, flags, timeouts
extern const Case kExportCases[];   // descriptors that leave
extern const Case kGroupCases[];    // listeners that share a port
extern const Case kSpawnCases[];    // high numbers, shells, forks beside threads
extern const Case kLateCases[];     // images that come late, or without the library

[[noreturn]] void Die(const char* file, int line, const char* what);
#define EXPECT(condition) ((condition) ? (void)0 : ::mistakes::Die(__FILE__, __LINE__, #condition))

int Listen(uint16_t port);
int Accept(int listener);
int Connect(uint16_t port);
void Put(int fd, const std::string& text);         // all of it, by write
std::string Get(int fd, size_t bytes);             // exactly so many, by read
void ExpectEnd(int fd);                            // the next read finds the end of the stream
void ExpectText(int fd, const std::string& text);  // exactly this comes next
void ExpectChild(pid_t pid);                       // ended with 0
void SendFd(int channel, int fd);                  // by SCM_RIGHTS, beside one byte
void Echo(int fd);                                 // all that comes, up to the end of the stream
bool Readable(int fd, int timeout_ms);
void WaitForDriver();  // says "holding", and waits until the driver has looked
int64_t NowMs();
const char* Self();  // path of this program, for exec

// Entered by exec: `mistakes resume WHAT FD`.
int Resume(const std::string& what, int fd);

}  // namespace mistakes
