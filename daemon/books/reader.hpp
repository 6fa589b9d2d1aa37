// SPDX-License-Identifier: Apache-2.0
// Reads the books that a Store has written, of this version or another one with the same major number. It believes
// nothing: not a number, not an offset, not a text. It reports each fault in a sentence, and reads nothing outside of
// the memory that it was given.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "daemon/books/image.hpp"

namespace shmb::daemon::books {

// The parts of an image that are in memory. Those of a table or of the journal may be shorter than it, as nothing lies
// behind them.
struct Parts {
  std::span<std::byte> front;  // head and words
  std::array<std::span<std::byte>, kMostKinds> tables;
  std::span<std::byte> journal;
};

// `front`: at least its first kTablesAt bytes. `bytes`: of the whole image.
Result<Head> read_head(std::span<const std::byte> front, std::uint64_t bytes);

class Reader {
 public:
  // Brings the memory to the state after its last commit, in place. An error says why this is no image that can be
  // read. The memory must outlive the reader.
  static Result<Reader> open(std::span<std::byte> memory);
  static Result<Reader> open(const Head& head, const Parts& parts);

  // The records that are damaged, or contradict another one. At most 100 sentences, and one that counts the rest.
  std::vector<std::string> problems() const;
  // All records, one a line, with the names of the table. Zeros are left out, secrets are not shown, and bytes that are
  // no printable characters are escaped.
  std::string text() const;
  std::uint64_t epoch() const;
  // Of the places that may be in use, as the totals say. Without totals that can be believed it is nothing, and
  // `problems` and `text` look at all places that there are.
  std::optional<std::uint64_t> bytes_in_use() const;
  // All records of a kind, by value. Only for books without problems. What an older version lacks has its default.
  template <class Record, class Body>
  void each(Body body) const {
    each_place(Record::kNumber, [&](const std::byte* record, std::size_t size) {
      Record out;
      std::memcpy(&out, record, std::min(size, sizeof out) - sizeof out.check);
      body(std::as_const(out));
    });
  }

 private:
  void each_place(std::uint32_t number, const std::function<void(const std::byte*, std::size_t)>& body) const;
  explicit Reader(const Parts& parts) : parts_(parts) {}

  Parts parts_;
};

}  // namespace shmb::daemon::books
