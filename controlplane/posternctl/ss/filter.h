// filter.h - which sockets `posternctl ss` shows, in the language of ss(8).
// SPDX-License-Identifier: Apache-2.0
//
//   FILTER  = [ state STATE | exclude STATE ]... [ EXPR ]
//   EXPR    = EXPR or EXPR | EXPR [and] EXPR | not EXPR | ( EXPR ) | TEST
//   TEST    = (sport | dport) OP PORT | (src | dst) [OP] ADDRESS[/LENGTH][:PORT]
//             | (pid | fd) OP NUMBER | (comm | path | reason) OP WORD
//   OP      = = == eq != ne > gt < lt >= ge <= le      PORT = [:]NUMBER | [:]SERVICE
// `and` binds closer than `or`. The last line of TEST is Postern's own.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "../line/ask.h"

namespace postern::ctl_command {

using SocketTest = std::function<bool(const Json& socket)>;

// The words as the command has them; a word may be several of the language's (in quotes of the
// shell). Throws AskError, which names what was wrong.
SocketTest ParseFilter(const std::vector<std::string>& words);

}  // namespace postern::ctl_command
