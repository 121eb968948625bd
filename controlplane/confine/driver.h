// driver.h - what a card's driver gives up when it has its card.
// SPDX-License-Identifier: Apache-2.0
//
// It reads what programs of all users write into rings, and what comes from the network.
#pragma once

namespace postern::daemon {

enum class Card { kDpdk, kVerbs };

// For all threads, once, before anything of a stranger's is read: no new privileges, the filter of
// system calls, and of capabilities only those that the card's library takes later. False after a
// message.
bool ConfineDriver(Card card);

}  // namespace postern::daemon
