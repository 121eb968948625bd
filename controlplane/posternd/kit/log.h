// log.h - what posternd says: stderr in the foreground, DIR/posternd.log otherwise.
// SPDX-License-Identifier: Apache-2.0
//
// Others can cause most of what is said, and the file is in memory more often than not. So a kind
// of line, which is its format, is written a few times in a second, and the file is given another
// name when it has grown to its bound: the one before it goes.
#pragma once
#include <string>

namespace postern::daemon {

void SetVerbose(bool verbose);
// From now on into this file, which becomes standard error; false with errno: it can't be opened.
bool LogTo(const std::string& path);
void SetSilent();  // not even warnings: a fuzzer causes nothing but
// Something a user may have to act on.
[[gnu::format(printf, 1, 2)]] void Warn(const char* format, ...);
// The course of events; only with --verbose.
[[gnu::format(printf, 1, 2)]] void Note(const char* format, ...);

}  // namespace postern::daemon
