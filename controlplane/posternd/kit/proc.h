// proc.h - what the kernel says about another process. Every answer may be out of date when it is
// used, except through a pidfd.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "fd.h"

namespace postern::daemon {

// Field 22 of /proc/PID/stat, clock ticks since boot; 0 when there is no such process.
uint64_t StartTime(pid_t pid);
std::string Comm(pid_t pid);
// For a line of text: a program names itself as it likes.
std::string PlainComm(pid_t pid);
// Inode of the network namespace; 0 when it can't be determined.
uint64_t NetnsIno(pid_t pid);
uint64_t OwnNetnsIno();
uint64_t PidnsIno(pid_t pid);
// The namespace itself; not ok() when it can't be had, or is another one than `expected` (0: any).
UniqueFd OpenNetns(pid_t pid, uint64_t expected);
// Path in the unified hierarchy, as we see it; "" when there is none.
std::string CgroupOf(pid_t pid);

// Whether one of its user ids (real, effective, saved) is `uid`: it could be that user.
bool HasUid(pid_t pid, uid_t uid);

// Whose it is; of several user ids, one that is not ours. What takes a lock of its memory (its
// maps, its environment) is to be asked as this one's (guard/patience.h). -1: there is no such
// process.
uid_t UserOf(pid_t pid);

// Not ok() when there is none, or when it is not the one that started at `start_time` (0: any).
UniqueFd OpenPidfd(pid_t pid, uint64_t start_time);
// The process at the other end of a Unix socket: the one that has connected, whichever process has
// the socket now. Not ok() when it is gone, or not one that we could see.
UniqueFd PeerPidfd(int socket, pid_t pid);
bool PidfdIsDead(int pidfd);
// Whether a descriptor that another process sent is one.
bool IsPidfd(int fd);
// Zombies count as dead, since they hold nothing any more.
bool IsAlive(pid_t pid, uint64_t start_time);
// How long this thread, since it began, was ready to run while others had the CPU; 0: not known.
std::chrono::nanoseconds WaitedForCpu();

// Whether that number of the process is this very socket of the kernel's.
bool HasSocket(pid_t pid, uint32_t number, int socket);

bool ThreadIsStopped(uint32_t tid);  // by a signal or a debugger
// Whether it has the file (by inode) mapped. kUnknown: we may not look, though it is of our user.
// kNoAnswer: it is another user's, and keeps us from looking.
enum class Mapped { kNo, kYes, kUnknown, kNoAnswer };
Mapped HasMapped(pid_t pid, uint64_t inode);
// Which processes have which of the files (by inode) mapped, as far as we may look into them. Slow:
// it reads the maps of every process.
std::multimap<uint64_t, pid_t> MappersOf(const std::set<uint64_t>& inodes);

}  // namespace postern::daemon
