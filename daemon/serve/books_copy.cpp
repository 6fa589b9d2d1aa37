// SPDX-License-Identifier: Apache-2.0
// See books_copy.hpp.
#include "daemon/serve/books_copy.hpp"

#include <utility>

#include "base/sys_memory.hpp"
#include "base/text.hpp"
#include "daemon/serve/answer.hpp"

namespace shmb::daemon {

Result<int> BooksCopy::make(const Session& session) {
  const books::Store& store = accounts_.host.books.store;
  const std::uint64_t most = accounts_.host.facts.books_copied;
  empty();
  if (const std::uint64_t bytes = store.copy_bytes(); bytes > most)
    return error(Status::limit, "a copy of the books would have " + format_size(bytes) + ", and at most " +
                                    format_size(most) +
                                    " are copied, because the broker serves nobody meanwhile: the tables have room "
                                    "for as many objects as there were at once since the broker began");
  SHMB_TRY(copy, store.copy());
  file_ = std::move(copy);
  session_ = session.id;
  ++accounts_.open_descriptors;
  return file_.get();
}

void BooksCopy::end(const Session& session) {
  if (session.id == session_) empty();
}

// A process that still holds the descriptor keeps the file. Its memory goes all the same.
void BooksCopy::empty() {
  if (!file_) return;
  (void)sys::truncate(file_.get(), 0);
  file_.reset();
  session_ = 0;
  --accounts_.open_descriptors;
}

void serve_books(const Request& request) {
  Ledger& ledger = request.ledger;
  if (!request.read<shmbw_books>()) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  if (!request.session.admin && !ledger.host.private_mode())
    return request.fail(Status::denied,
                        "the books hold all users' sessions and regions: ask by the admin socket, as root does");
  if (const auto full = ledger.accounts.descriptor_shortage(request.session.uid, 1, request.session.admin))
    return request.fail(refuse_descriptors(ledger.host, *full));
  auto copy = ledger.books_copy.make(request.session);
  if (!copy) return request.fail(copy.error());
  ledger.reply.fds.push_back(*copy);
  request.answer(shmbw_books_reply{ledger.host.books.store.copy_bytes(), books::kMajor, books::kMinor});
}

}  // namespace shmb::daemon
