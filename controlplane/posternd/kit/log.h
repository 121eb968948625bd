// log.h - what posternd says: stderr in the foreground, DIR/posternd.log otherwise.
// SPDX-License-Identifier: Apache-2.0
//
// Others can cause most of what is said, and the file is in memory more often than not. So a kind
// of line, which is its format, is written a few times in a second (at level debug all are), and
// the file is given another name when it has grown to its bound: the one before it goes.
#pragma once
#include <string>

namespace postern::daemon {

// What is written: the level and what is more severe.
enum class LogDetail : unsigned { kNone, kWarn, kInfo, kDebug };
void SetLogDetail(LogDetail detail);
// From now on into this file, which becomes standard error; false with errno: it can't be opened.
bool LogTo(const std::string& path);
void SetSilent();  // not even warnings: a fuzzer causes nothing but
// Something a user may have to act on.
[[gnu::format(printf, 1, 2)]] void Warn(const char* format, ...);
// Members that come and go, link groups made and ended, jobs of reapers.
[[gnu::format(printf, 1, 2)]] void Inform(const char* format, ...);
// The course of events; only at level debug (--verbose).
[[gnu::format(printf, 1, 2)]] void Note(const char* format, ...);

}  // namespace postern::daemon
