// SPDX-License-Identifier: Apache-2.0
// The copy of the books that BOOKS hands out, for `shmbroker status --state`. It is charged to nobody, and a client may
// keep the descriptor for as long as it likes. So there is one copy at most: the next one empties it, and so does the
// end of the session that asked. Whoever reads it after that finds fewer bytes than the reply said, and asks again.
//
// The broker serves nobody while it makes one, so large books are not copied.
#pragma once

#include <cstdint>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace shmb::daemon {

struct Accounts;
class Session;

class BooksCopy {
 public:
  explicit BooksCopy(Accounts& accounts) : accounts_(accounts) {}
  BooksCopy(const BooksCopy&) = delete;
  BooksCopy& operator=(const BooksCopy&) = delete;

  // Its number, which lives as long as the copy.
  Result<int> make(const Session& session);
  void end(const Session& session);  // that of this session, if there is one

 private:
  void empty();

  Accounts& accounts_;
  Fd file_;
  std::uint64_t session_ = 0;  // that asked for it
};

}  // namespace shmb::daemon
