// links_remote.cc - link groups whose other end is a stack of another user's posternd.
// SPDX-License-Identifier: Apache-2.0
//
// Each daemon knows its own end, and hears of the other's end from the broker. What came from there
// is checked like everything that others wrote: the memory by its seals and its header.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "../kit/log.h"
#include "base/atomic.h"
#include "registry.h"
#include "slot_copy.h"
#include "stack_words.h"

namespace postern::daemon {
int Registry::AddRemote(LinkGroup& link, uint32_t side, Stack& own, uint32_t who) {
  const uint32_t idx = AddRef(own, side, link.id, link.owner[1 - side], who, 0);
  if (idx == PSTN_NONE) return -ENOSPC;
  link.remote[1 - side] = true;
  AttachEnd(link, side, own, idx);
  SayLevel(link, side);
  return 0;
}

int Registry::MakeRemote(Stack& client, const pstn_uuid& server, uint32_t full, LinkGroup*& link) {
  const int found = FindLink(client, server, full, link);
  if (found != -ENOENT) return found;
  if (IsGuests(client) && !HasRoomForGuest(client.uid)) return -EMFILE;
  auto fresh = std::make_unique<LinkGroup>();
  fresh->id = NewUuid();
  fresh->owner = {client.id, server};
  UniqueFd memfd(CreateLgr(fresh->id, client.id, server));
  if (!memfd.ok()) return -ENOMEM;
  fresh->inode = InodeOf(memfd.get());
  fresh->fd = Share(std::move(memfd));
  if (const int error = AddRemote(*fresh, 0, client, PSTN_LGR_OTHER_USER); error != 0) return error;
  link = fresh.get();
  links_[fresh->id] = std::move(fresh);
  return -EINPROGRESS;
}

// A stack's table has room for so many, whoever comes. One user gets no more of it than half of
// what is left free: so that one which makes as many stacks as it can has a third of the table (85
// of 256), n of them have n / (n + 2), and there is room for the next one and for the stack's own
// user.
bool Registry::MayTakeMore(const Stack& own, uid_t maker) {
  const size_t all = own.s->lgrs.count(), taken = own.links.size();
  const auto makers = std::count_if(own.links.begin(), own.links.end(), [&](const auto& entry) {
    const LinkGroup& l = *entry.second;
    return l.maker == maker && (l.remote[0] || maker != geteuid());
  });
  return taken < all && (makers == 0 || (static_cast<size_t>(makers) + 1) * 2 <= all - taken);
}

int Registry::TakeRemote(const ctl::Msg& link, UniqueFd memfd) {
  const pstn_uuid &server = link.uuid, &client = link.peer, &id = link.id;
  const uint32_t who = link.d != 0 ? PSTN_LGR_OTHER_NETNS : PSTN_LGR_OTHER_USER;
  Stack* const own = Find(server);
  if (own == nullptr) return -ENOENT;
  if (Find(client) != nullptr || links_.count(id) != 0) return -EEXIST;
  const auto of_pair = std::count_if(links_.begin(), links_.end(), [&](const auto& entry) {
    return Same(entry.second->owner[0], client) && Same(entry.second->owner[1], server);
  });
  if (of_pair >= PSTN_PAIR_LGRS) return -ENOSPC;
  if (!Reachable(*own)) return -EAGAIN;
  if (IsShort(*own)) return -ENOMEM;
  pstn_uuid owner[2];
  if (!memfd.ok() || !OwnersOfLgr(memfd.get(), id, owner) || !Same(owner[0], client) ||
      !Same(owner[1], server))
    return -EINVAL;
  // A guest's has its posternd's memory.
  const uid_t maker = link.whose != 0 ? ctl::WhoseUid(link) : OwnerOf(memfd.get());
  if (!MayTakeMore(*own, maker)) {
    if (!std::exchange(own->refused_links, true))
      Warn("stack %s: user %u has as many link groups with it as one may have",
           Text(server).c_str(), maker);
    return -ENOSPC;
  }
  auto fresh = std::make_unique<LinkGroup>();
  fresh->id = id;
  fresh->maker = maker;
  fresh->owner = {client, server};
  fresh->inode = InodeOf(memfd.get());
  fresh->fd = Share(std::move(memfd));
  if (const int error = AddRemote(*fresh, 1, *own, who); error != 0) return error;
  Inform("link group %s: %s, of another daemon -> %s", Text(id).c_str(), Text(client).c_str(),
         Text(server).c_str());
  PushLink(*fresh, 1);
  links_[id] = std::move(fresh);
  return 0;
}

void Registry::RemoteEnded(const pstn_uuid& id, uint32_t side) {
  const auto it = links_.find(id);
  if (it == links_.end() || side > 1 || !it->second->remote[side]) return;
  KillLink(*it->second, side);
  if (!link_timer_.pending()) link_timer_.AddMs(1);  // what is not in use goes now
}

}  // namespace postern::daemon
