// log.h - what posternd says: stderr in the foreground, DIR/posternd.log otherwise.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace postern::daemon {

void SetVerbose(bool verbose);
void SetSilent();  // not even warnings: a fuzzer causes nothing but
// Something a user may have to act on.
[[gnu::format(printf, 1, 2)]] void Warn(const char* format, ...);
// The course of events; only with --verbose.
[[gnu::format(printf, 1, 2)]] void Note(const char* format, ...);

}  // namespace postern::daemon
