// SPDX-License-Identifier: Apache-2.0
// See turns.hpp. Few have something waiting, so the least served of them is searched for and not kept in order.
#include "daemon/kit/turns.hpp"

#include <algorithm>

#include "base/sys_process.hpp"

namespace shmb::daemon {
namespace {

template <class T>
void put_in(T*& first, T& item) {
  item.previous = nullptr;
  item.next = first;
  if (first) first->previous = &item;
  first = &item;
}
template <class T>
void take_out(T*& first, T& item) {
  (item.previous ? item.previous->next : first) = item.next;
  if (item.next) item.next->previous = item.previous;
  item.next = item.previous = nullptr;
}
template <class T>
T* least_served(T* first) {
  T* least = first;
  for (T* at = first; at; at = at->next)
    if (at->served < least->served) least = at;
  return least;
}

}  // namespace

Turns::Item::~Item() {
  if (turns_) turns_->forget(*this);
}

Turns::Process& Turns::join(std::uint32_t uid, std::uint32_t pid) {
  User& user = users_[uid];
  user.uid = uid;
  auto [at, fresh] = user.processes.try_emplace(pid);
  Process& process = at->second;
  if (fresh) {
    process.user = &user;
    process.pid = pid;
    process.served = user.level;
    if (user.members++ == 0) user.served = std::max(user.served, level_);
  }
  ++process.members;
  return process;
}

void Turns::leave(Process& process) {
  if (--process.members != 0) return;
  while (process.first) forget(*process.first);
  User& user = *process.user;
  user.processes.erase(process.pid);
  if (--user.members == 0) users_.erase(user.uid);
}

void Turns::ready(Process& process, Item& item) {
  if (item.process_) return;
  item.turns_ = this;
  item.process_ = &process;
  item.next_ = nullptr;
  item.previous_ = process.last;
  (process.last ? process.last->next_ : process.first) = &item;
  process.last = &item;
  ++waiting_;
  if (item.previous_) return;
  User& user = *process.user;
  if (!user.first) {
    user.served = std::max(user.served, level_);
    put_in(first_, user);
  }
  process.served = std::max(process.served, user.level);
  put_in(user.first, process);
}

void Turns::forget(Item& item) {
  Process* process = std::exchange(item.process_, nullptr);
  if (!process) return;
  (item.previous_ ? item.previous_->next_ : process->first) = item.next_;
  (item.next_ ? item.next_->previous_ : process->last) = item.previous_;
  item.next_ = item.previous_ = nullptr;
  --waiting_;
  if (process->first) return;
  User& user = *process->user;
  take_out(user.first, *process);
  if (!user.first) take_out(first_, user);
}

std::int64_t Turns::now() const { return clock ? clock() : sys::now_monotonic(); }

void Turns::charge(Process& process, std::int64_t time) {
  process.served += time;
  process.user->served += time;
}

void Turns::serve(std::int64_t longest) {
  std::int64_t at = now();
  const std::int64_t until = at + longest;
  while (first_ && at < until) {
    User& user = *least_served(first_);
    Process& process = *least_served(user.first);
    level_ = std::max(level_, user.served);
    user.level = std::max(user.level, process.served);
    Item& item = *process.first;
    forget(item);
    ++process.members;  // it stays until it has been charged
    item.on_turn();
    if (after) after();
    const std::int64_t then = now();
    charge(process, then - at);
    leave(process);
    at = then;
  }
}

}  // namespace shmb::daemon
