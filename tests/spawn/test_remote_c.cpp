// SPDX-License-Identifier: Apache-2.0
// The C face of remote, as another language would use it: bytes, regions and references by hand, answers given later,
// and what it refuses.
#include <cstring>

#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

std::atomic<int> dropped = 0;
constexpr int echoed = 0;  // a word: so many requests were answered

// "echo" gives back what came, "object" makes one, "late" is answered by another thread, "pass" gives its references
// on.
void answer_in_c(void*, shmb_request* request) {
  const std::string function = shmb_request_function(request);
  shmb_content* const content = shmb_request_content(request);
  if (shmb_request_get_kind(request) == SHMB_REQUEST_FETCH) {
    const auto* text = static_cast<const std::string*>(shmb_request_object(request));
    shmb_payload payload{};
    payload.data = text->data(), payload.length = text->size();
    (void)shmb_request_answer(request, &payload, nullptr);
    return;
  }
  const std::string bytes(static_cast<const char*>(shmb_content_data(content)), shmb_content_length(content));
  shmb_payload payload{};
  payload.data = bytes.data(), payload.length = bytes.size();
  if (function == "object") {
    (void)shmb_request_answer_object(request, new std::string(bytes), "text", nullptr);
  } else if (function == "late") {
    std::thread([request, bytes] {
      pause_ms(50);
      shmb_payload late{};
      late.data = bytes.data(), late.length = bytes.size();
      (void)shmb_request_answer(request, &late, nullptr);
    }).detach();
  } else if (function == "pass") {
    shmb_reference* reference = nullptr;
    (void)shmb_content_take_reference(content, 0, &reference, nullptr);
    shmb_region* region = nullptr;
    (void)shmb_content_take_region(content, 0, &region, nullptr);
    payload.references = &reference, payload.reference_count = 1;
    payload.regions = &region, payload.region_count = 1;
    (void)shmb_request_answer(request, &payload, nullptr);
    shmb_reference_free(reference);
    (void)shmb_release(region, 0, nullptr);
  } else if (function == "region") {  // a value that is a region
    shmb_region* region = nullptr;
    (void)shmb_content_take_region(content, 0, &region, nullptr);
    payload.regions = &region, payload.region_count = 1;
    (void)shmb_request_answer(request, &payload, nullptr);
    (void)shmb_release(region, 0, nullptr);
  } else if (function == "in_place") {  // what it was given, read where it lies: first whether that is shared memory
    const char mapped = shmb_content_mapped(content) != 0 ? 1 : 0;
    const std::string told = std::string(1, mapped) + bytes.substr(std::min<std::size_t>(bytes.size(), 1));
    payload.data = told.data();
    (void)shmb_request_answer(request, &payload, nullptr);
  } else if (function == "echo") {
    (void)shmb_request_answer(request, &payload, nullptr);
    ++words().numbers[echoed];
  } else if (function == "nowhere") {
    shmb_remote_failure failure{};
    failure.size = sizeof failure;
    failure.status = SHMB_E_NO_FUNCTION, failure.text = "nothing of that name";
    (void)shmb_request_fail(request, &failure, nullptr);
  } else {
    shmb_remote_failure failure{};
    failure.size = sizeof failure;
    failure.type = "TypeError", failure.text = "no such thing", failure.trace = "line 1\n";
    (void)shmb_request_fail(request, &failure, nullptr);
  }
}

shmb_remote* join_in_c(int rank) {
  shmb_remote_options options{};
  options.size = sizeof options;
  options.name = rank == 0 ? "a" : "b";
  options.address = kAddress;
  options.rank = rank;
  options.world_size = 2;
  options.request = answer_in_c;
  options.drop = [](void*, void* object) {
    delete static_cast<std::string*>(object);
    ++dropped;
  };
  shmb_remote* worker = nullptr;
  shmb_error error{};
  if (shmb_remote_init(&options, &worker, &error) != SHMB_OK) throw std::runtime_error(error.sentence);
  return worker;
}
std::string text_of(shmb_content* content) {
  return {static_cast<const char*>(shmb_content_data(content)), shmb_content_length(content)};
}

}  // namespace

TEST_CASE("The C face: calls, late answers, failures, objects, regions and references passed on") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    shmb_remote* const worker = join_in_c(rank);
    if (rank == 0) {
      shmb_payload payload{};
      payload.data = "bytes", payload.length = 5;
      const auto call = [&](const char* function, const shmb_payload& what) {
        shmb_future* future = nullptr;
        EXPECT(shmb_remote_call(worker, 1, function, &what, 0, 0, &future, nullptr) == SHMB_OK);
        return future;
      };
      shmb_content* content = nullptr;
      for (const char* function : {"echo", "late"}) {
        shmb_future* const future = call(function, payload);
        EXPECT(shmb_future_wait(future, 0, &content, nullptr) == SHMB_OK);
        EXPECT(text_of(content) == "bytes");
        EXPECT(shmb_future_get_state(future) == SHMB_FUTURE_DONE);
        shmb_future_free(future);
      }
      shmb_future* const failed = call("unheard", payload);
      shmb_error error{};
      EXPECT(shmb_future_wait(failed, 0, nullptr, &error) == SHMB_E_RAISED);
      shmb_remote_failure failure{};
      failure.size = sizeof failure;
      EXPECT(shmb_future_failure(failed, &failure, nullptr) == SHMB_OK);
      EXPECT(std::string(failure.type) == "TypeError");
      EXPECT(std::string(failure.trace) == "line 1\n");
      EXPECT(std::string(failure.worker) == "b");
      EXPECT(failure.rank == 1);
      shmb_future_free(failed);
      shmb_future* const absent = call("nowhere", payload);
      EXPECT(shmb_future_wait(absent, 0, nullptr, &error) == SHMB_E_NO_FUNCTION);
      EXPECT(has(error.sentence, "nothing of that name"));
      shmb_future_free(absent);

      shmb_reference* reference = nullptr;
      EXPECT(shmb_remote_create(worker, 1, "object", &payload, 0, 0, &reference, nullptr) == SHMB_OK);
      shmb_region* region = nullptr;
      EXPECT(shmb_remote_region(worker, 100'000, &region, nullptr) == SHMB_OK);
      std::memcpy(shmb_region_data(region), "shared", 6);
      payload.references = &reference, payload.reference_count = 1;
      payload.regions = &region, payload.region_count = 1;
      shmb_future* const passed = call("pass", payload);
      EXPECT(shmb_future_wait(passed, 0, &content, nullptr) == SHMB_OK);
      EXPECT(shmb_content_references(content) == 1);
      EXPECT(shmb_content_regions(content) == 1);
      shmb_reference* again = nullptr;
      EXPECT(shmb_content_take_reference(content, 0, &again, nullptr) == SHMB_OK);
      EXPECT(shmb_content_take_reference(content, 1, &again, nullptr) == SHMB_E_NOT_FOUND);
      shmb_region* same = nullptr;
      EXPECT(shmb_content_take_region(content, 0, &same, nullptr) == SHMB_OK);
      EXPECT(shmb_content_take_region(content, 0, &same, nullptr) == SHMB_E_NOT_FOUND);
      EXPECT(std::memcmp(shmb_region_data(same), "shared", 6) == 0);
      shmb_future_free(passed);
      for (shmb_reference* one : {reference, again}) {
        shmb_future* fetched = nullptr;
        EXPECT(shmb_reference_fetch(one, 0, &fetched, nullptr) == SHMB_OK);
        EXPECT(shmb_future_wait(fetched, 0, &content, nullptr) == SHMB_OK);
        EXPECT(text_of(content) == "bytes");
        shmb_future_free(fetched);
        shmb_reference_free(one);
      }
      (void)shmb_release(region, 0, nullptr);
      (void)shmb_release(same, 0, nullptr);

      // A value that is bytes.
      payload = {};
      payload.data = "value", payload.length = 5;
      EXPECT(shmb_remote_create(worker, 0, "echo", &payload, 0, 0, &reference, nullptr) == SHMB_OK);
      void* object = &payload;
      EXPECT(shmb_reference_local(reference, 0, &object, &content, nullptr) == SHMB_OK);
      EXPECT(object == nullptr);
      EXPECT(text_of(content) == "value");
      shmb_reference_free(reference);

      // Many bytes are one memory for all that fetch them.
      const std::string many(100'000, 'm');
      payload.data = many.data(), payload.length = many.size();
      EXPECT(shmb_remote_create(worker, 1, "echo", &payload, 0, 0, &reference, nullptr) == SHMB_OK);
      shmb_future* fetched[2] = {};
      const char* seen[2] = {};
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT(shmb_reference_fetch(reference, 0, &fetched[i], nullptr) == SHMB_OK);
        EXPECT(shmb_future_wait(fetched[i], 0, &content, nullptr) == SHMB_OK);
        EXPECT(shmb_content_mapped(content) == 1);
        EXPECT(text_of(content) == many);
        seen[i] = static_cast<const char*>(shmb_content_data(content));
      }
      const_cast<char*>(seen[0])[5] = 'x';
      EXPECT(seen[1][5] == 'x');
      for (shmb_future* one : fetched) shmb_future_free(one);
      shmb_reference_free(reference);

      // A handle taken out of a value stays there for others.
      EXPECT(shmb_remote_region(worker, 100'000, &region, nullptr) == SHMB_OK);
      std::memcpy(shmb_region_data(region), "of value", 8);
      payload = {};
      payload.regions = &region, payload.region_count = 1;
      EXPECT(shmb_remote_create(worker, 0, "region", &payload, 0, 0, &reference, nullptr) == SHMB_OK);
      EXPECT(shmb_reference_local(reference, 0, nullptr, &content, nullptr) == SHMB_OK);
      for (int i = 0; i < 2; ++i) {
        EXPECT(shmb_content_take_region(content, 0, &same, nullptr) == SHMB_OK);
        EXPECT(std::memcmp(shmb_region_data(same), "of value", 8) == 0);
        (void)shmb_release(same, 0, nullptr);
      }
      EXPECT(shmb_reference_fetch(reference, 0, &fetched[0], nullptr) == SHMB_OK);
      EXPECT(shmb_future_wait(fetched[0], 0, &content, nullptr) == SHMB_OK);
      EXPECT(shmb_content_regions(content) == 1);
      shmb_future_free(fetched[0]);
      shmb_reference_free(reference);
      (void)shmb_release(region, 0, nullptr);

      shmb_future* future = nullptr;
      EXPECT(shmb_remote_call(worker, 1, "echo", nullptr, 8, 0, &future, &error) == SHMB_E_UNKNOWN_FLAGS);
      EXPECT(shmb_remote_call(worker, 2, "echo", nullptr, 0, 0, &future, &error) == SHMB_E_NOT_FOUND);
      EXPECT(shmb_remote_call(worker, 1, nullptr, nullptr, 0, 0, &future, &error) == SHMB_E_INVALID);
      EXPECT(shmb_remote_call(worker, 1, "echo", nullptr, 0, -5, &future, &error) == SHMB_E_INVALID);
      EXPECT(shmb_remote_call(nullptr, 1, "echo", nullptr, 0, 0, &future, &error) == SHMB_E_INVALID);
      EXPECT(shmb_remote_call(worker, 1, "echo", nullptr, 0, SHMB_NO_WAIT, &future, &error) == SHMB_E_INVALID);
      EXPECT(shmb_remote_serve(worker, SHMB_NO_WAIT, &error) == SHMB_OK);
      int answer = 0;
      const auto asks = [](void* context) { return *static_cast<int*>(context); };
      EXPECT(shmb_remote_wait(worker, asks, &answer, SHMB_NO_WAIT, &error) == SHMB_E_DEADLINE);
      EXPECT(shmb_remote_wait(worker, asks, &answer, 1, &error) == SHMB_E_DEADLINE);
      answer = 1;
      for (const std::int64_t wait : {SHMB_DEFAULT_TIMEOUT, SHMB_FOREVER, SHMB_NO_WAIT})
        EXPECT(shmb_remote_wait(worker, asks, &answer, wait, &error) == SHMB_OK);

      // A child may free what it has no use for, and fork on.
      const pid_t child = ::fork();
      if (child == 0) {
        shmb_remote_free(worker);
        const pid_t grandchild = ::fork();
        if (grandchild == 0) ::_exit(0);
        int inner = -1;
        ::_exit(::waitpid(grandchild, &inner, 0) == grandchild && inner == 0 ? 0 : 1);
      }
      int ended = -1;
      EXPECT(::waitpid(child, &ended, 0) == child && ended == 0);
      EXPECT(shmb_remote_call(worker, 1, "echo", nullptr, 0, 0, &future, nullptr) == SHMB_OK);
      EXPECT(shmb_future_wait(future, 0, nullptr, nullptr) == SHMB_OK);
      shmb_future_free(future);
    }
    EXPECT(shmb_remote_shutdown(worker, nullptr, nullptr, nullptr) == SHMB_OK);
    EXPECT(shmb_remote_shutdown(worker, nullptr, nullptr, nullptr) == SHMB_E_CLOSED);
    shmb_remote_free(worker);
    EXPECT(dropped == rank);
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

TEST_CASE("More than 1 KiB are read where they lie, with as many calls outstanding as there are slots, and with more") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    shmb_remote* const worker = join_in_c(rank);
    if (rank == 0) {
      const auto call = [&](std::size_t size, char fill) {
        const std::string bytes(size, fill);
        shmb_payload payload{};
        payload.data = bytes.data(), payload.length = bytes.size();
        shmb_future* future = nullptr;
        shmb_error error{};
        if (shmb_remote_call(worker, 1, "in_place", &payload, 0, SHMB_FOREVER, &future, &error) != SHMB_OK)
          throw std::runtime_error(error.sentence);
        return future;
      };
      const auto answer = [](shmb_future* future) {
        shmb_content* content = nullptr;
        EXPECT(shmb_future_wait(future, SHMB_FOREVER, &content, nullptr) == SHMB_OK);
        return content;
      };
      // One at a time: both ways in place. Small ones are copied.
      for (const auto& [size, in_place] : {std::pair{std::size_t{1024}, false}, std::pair{std::size_t{1025}, true},
                                           std::pair{std::size_t{60'000}, true}, std::pair{std::size_t{65'536}, true},
                                           std::pair{std::size_t{65'537}, true}}) {
        shmb_future* const future = call(size, 'x');
        shmb_content* const content = answer(future);
        EXPECT((text_of(content)[0] == 1) == in_place);
        EXPECT((shmb_content_mapped(content) == 1) == in_place);
        shmb_future_free(future);
      }
      // Results that are kept hold a share of the slots. Results beyond it arrive all the same, and are whole.
      for (int round = 0; round < 2; ++round) {
        std::vector<shmb_future*> all;
        for (int i = 0; i < 2500; ++i) all.push_back(call(60'000, static_cast<char>('a' + i % 26)));
        int in_place = 0;
        for (std::size_t i = 0; i < all.size(); ++i) {
          shmb_content* const content = answer(all[i]);
          const std::string text = text_of(content);
          EXPECT(text.size() == 60'000);
          EXPECT(text.substr(1) == std::string(59'999, static_cast<char>('a' + i % 26)));
          in_place += shmb_content_mapped(content) != 0;
        }
        EXPECT(in_place < 2500);
        for (shmb_future* one : all) shmb_future_free(one);
      }
      // All of them are free again.
      shmb_future* const future = call(60'000, 'z');
      EXPECT(shmb_content_mapped(answer(future)) == 1);
      shmb_future_free(future);
    }
    shmb_error error{};
    if (shmb_remote_shutdown(worker, nullptr, nullptr, &error) != SHMB_OK) throw std::runtime_error(error.sentence);
    shmb_remote_free(worker);
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

TEST_CASE("A worker that calls again and again without waiting reads answers, and runs no callback meanwhile") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    shmb_remote* const worker = join_in_c(rank);
    if (rank == 0) {
      std::vector<shmb_future*> all;
      const auto call = [&] {
        shmb_payload payload{};
        payload.data = "x", payload.length = 1;
        all.push_back(nullptr);
        EXPECT(shmb_remote_call(worker, 1, "echo", &payload, 0, SHMB_FOREVER, &all.back(), nullptr) == SHMB_OK);
      };
      int called_back = 0;
      call();
      EXPECT(shmb_future_then(
                 all[0], [](void* context, shmb_future*) { ++*static_cast<int*>(context); }, &called_back, nullptr) ==
             SHMB_OK);
      for (int i = 0; i < 6000 && words().numbers[echoed] == 0; ++i) pause_ms(10);
      EXPECT(words().numbers[echoed] > 0);
      // Fewer than the other one's queue holds, so none of these waits for room.
      while (all.size() < 200) call();
      EXPECT(shmb_future_get_state(all[0]) == SHMB_FUTURE_DONE);
      EXPECT(called_back == 0);
      for (shmb_future* one : all) {
        EXPECT(shmb_future_wait(one, SHMB_FOREVER, nullptr, nullptr) == SHMB_OK);
        shmb_future_free(one);
      }
      EXPECT(called_back == 1);
    }
    shmb_error error{};
    if (shmb_remote_shutdown(worker, nullptr, nullptr, &error) != SHMB_OK) throw std::runtime_error(error.sentence);
    shmb_remote_free(worker);
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

}  // namespace remote_test
