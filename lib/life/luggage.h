// SPDX-License-Identifier: Apache-2.0
// luggage.h - what a process takes along from one family to the next (depart.h).
#pragma once
#include "family/family.h"
#include "life/meet.h"

namespace postern {

class Luggage {
 public:
  Luggage() = default;
  ~Luggage();
  Luggage(const Luggage&) = delete;
  Luggage& operator=(const Luggage&) = delete;

  // In the family that is left: copies what goes along, and takes its registrations out of the
  // event sets that this process alone has. False: no memory.
  bool Pack(Family& fam);
  // Connections go to the keeper, which carries them on to the stack `next`; one that can't be is
  // left out.
  void HandOnAll(Family& fam, const pstn_uuid& next);
  // In the next one, or (not attached) in none: then all is the kernel's.
  void Unpack(Family& fam);

  // No other process has a number that means this.
  static bool IsAlone(Family& fam, uint32_t entry, uint32_t refs);
  // A listener whose last process leaves: those that wait in its queue go to the kernel's. And a
  // socket that others have, too, and that is neither connected nor bound.
  static bool IsLast(Family& fam, uint32_t entry, const pstn_ep& ep);

 private:
  struct Kept {
    int fd;
    uint32_t was;    // the entry that it had
    uint32_t now;    // the entry that it has; 0: none yet
    uint32_t as;     // PSTN_EP_*: the state that it has again
    Place place;     // a connection's
    bool had_news;   // ... of which data or an end could be read
    bool ended;      // ... whose end has been sent (HasEnded)
    bool is_shared;  // others have it, too, and it is a listener or may become one
    pstn_ep ep;
  };
  struct Watched {
    int set, fd;
    uint32_t events;
    uint64_t data;
  };

  template <typename T>
  struct List {
    T* at = nullptr;
    size_t count = 0, room = 0;
    bool Reserve(size_t entries);
    void Free();
  };

  void PackSet(Family& fam, int epfd, uint32_t set_idx);
  bool TakeOne(Family& fam, int epfd, uint32_t set_idx);
  uint32_t Resume(Family& fam, const Kept& kept);
  uint32_t ResumeConnection(Family& fam, const Kept& kept);
  uint32_t ResumeShared(Family& fam, const Kept& kept);

  List<Kept> kept_;
  List<Watched> watched_;
};

}  // namespace postern
