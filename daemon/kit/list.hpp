// SPDX-License-Identifier: Apache-2.0
// A list whose links live in its elements. So an insert never allocates and a removal never searches. An element
// derives from one Hook for each list that it can be on. `Tag` tells the lists apart.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shmb::daemon {

template <class T, class Tag>
struct Hook {
  T* next = nullptr;
  T* previous = nullptr;
};

template <class T, class Tag>
class List {
 public:
  bool empty() const { return first_ == nullptr; }
  std::uint32_t size() const { return size_; }
  T* first() const { return first_; }
  static T* next(const T& item) { return hook(item).next; }

  void push_back(T& item) {
    hook(item) = {nullptr, last_};
    (last_ ? hook(*last_).next : first_) = &item;
    last_ = &item;
    ++size_;
  }
  void remove(T& item) {
    Hook<T, Tag>& own = hook(item);
    (own.previous ? hook(*own.previous).next : first_) = own.next;
    (own.next ? hook(*own.next).previous : last_) = own.previous;
    own = {};
    --size_;
  }
  // `body` may remove the element that it gets, and no other.
  template <class Body>
  void each(Body body) const {
    for (T *item = first_, *following; item; item = following) {
      following = hook(*item).next;
      body(*item);
    }
  }

 private:
  static Hook<T, Tag>& hook(T& item) { return item; }
  static const Hook<T, Tag>& hook(const T& item) { return item; }

  T* first_ = nullptr;
  T* last_ = nullptr;
  std::uint32_t size_ = 0;
};

}  // namespace shmb::daemon
