// SPDX-License-Identifier: Apache-2.0
// An object that has a record in the books, and the list of those whose record must be written again. Code that changes
// an object notes it here. At the next commit its record is made from it. So a request that changes an object ten times
// writes one record, and the code that changes it knows no record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/books/store.hpp"

namespace shmb::daemon::books {

template <class T>
struct Booked {
  std::uint32_t place = kNowhere;  // of its record
  std::uint32_t noted = kNowhere;  // its position in the list
};

// `noted` counts the objects of all lists. Most calls into the broker change none.
template <class T>
class Changed {
 public:
  explicit Changed(std::size_t& noted) : noted_(noted) {}
  void note(T& item) {
    std::uint32_t& position = booked(item).noted;
    if (position != kNowhere) return;
    position = static_cast<std::uint32_t>(list_.size());
    list_.push_back(&item);
    ++count_;
    ++noted_;
  }
  // A place in the middle of the list stays empty.
  void forget(T& item) {
    const std::uint32_t position = std::exchange(booked(item).noted, kNowhere);
    if (position == kNowhere) return;
    list_[position] = nullptr;
    while (!list_.empty() && !list_.back()) list_.pop_back();
    --count_;
    --noted_;
  }
  void forget_all() {
    each([](T& item) { booked(item).noted = kNowhere; });
    list_.clear();
    noted_ -= std::exchange(count_, 0);
    if (list_.capacity() > kKept) list_ = std::vector<T*>();
  }
  std::size_t count() const { return count_; }
  template <class Body>
  void each(Body body) const {
    for (T* item : list_)
      if (item) body(*item);
  }

 private:
  static constexpr std::size_t kKept = 1024;  // so that requests do not allocate
  static Booked<T>& booked(T& item) { return item; }
  std::vector<T*> list_;
  std::size_t count_ = 0;
  std::size_t& noted_;
};

}  // namespace shmb::daemon::books
