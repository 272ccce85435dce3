// The whole store on real files: 32 threads, cancellation, look-ahead, shutdown, the C entry. Both backends.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <thread>

#include "c_entry.hpp"
#include "packed_file.hpp"
#include "row_store.hpp"

using namespace engram;

namespace {

using Ids = std::vector<std::int64_t>;

struct Fixture {
  TempFolder folder;
  std::vector<std::string> paths;
  std::vector<Ids> ids;  // by table

  Fixture() {
    for (std::uint32_t table = 0; table < 2; ++table) {
      const PackedHeader header = make_header(1, 2, {3001, 3011, 3019, 3023, 3037, 3041});
      paths.push_back(folder.file("table" + std::to_string(table)));
      write_packed_file(paths.back(), table, header);
      ids.push_back(owned_ids(header));
    }
  }
};

std::unique_ptr<RowStore> open_store(const Fixture& fixture, BackendKind backend, std::uint64_t cache_bytes,
                                     std::uint64_t lookahead_bytes) {
  StoreOptions options;
  options.backend = backend;
  options.cache_bytes = cache_bytes;
  options.lookahead_bytes = lookahead_bytes;
  options.allow_buffered = true;
  options.scheduler.queue_depth = 32;
  options.num_threads = 8;
  OpenFault fault;
  auto store = RowStore::open(fixture.paths, options, nullptr, fault);
  const bool no_ring = fault.error == ENOSYS || fault.error == EPERM;
  if (store == nullptr && backend == BackendKind::kUring && no_ring) skip("io_uring is not available here");
  CHECK(store != nullptr);
  return store;
}

Ids pick(const Ids& ids, std::size_t count, std::mt19937_64& random) {
  Ids picked(count);
  for (std::int64_t& id : picked) id = ids[random() % ids.size()];
  return picked;
}

void read_and_check(RowStore& store, std::uint32_t table, const Ids& ids) {
  TestPlanes planes(ids.size());
  CHECK(store.read_now(table, ids, planes.out()) == 0);
  for (std::size_t idx = 0; idx < ids.size(); ++idx) CHECK(planes.holds(idx, table, ids[idx]));
}

void many_threads(const Fixture& fixture, BackendKind backend) {
  const auto store = open_store(fixture, backend, 100'000, 60'000);
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 32; ++seed)
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      for (int round = 0; round < 12; ++round) {
        const auto table = static_cast<std::uint32_t>(random() % 2);
        const Ids ids = pick(fixture.ids[table], 1 + random() % 400, random);
        if (round % 4 == 3) {
          TestPlanes planes(ids.size());
          SubmitFault fault;
          const auto ticket = store->submit(table, ids, planes.out(), Priority::kDecode, fault);
          store->cancel(*ticket);  // planes die right after: a late write is a use after free
        } else {
          read_and_check(*store, table, ids);
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(store->counters().failed_requests == 0);
}

void lookahead_requests(const Fixture& fixture, BackendKind backend) {
  const auto store = open_store(fixture, backend, 50'000, 100'000);
  Lookahead& lookahead = *store->lookahead();
  std::vector<std::thread> threads;
  for (std::uint64_t request = 0; request < 4; ++request)
    threads.emplace_back([&, request] {
      std::mt19937_64 random(request);
      for (int round = 0; round < 3; ++round) {
        const Ids prompt = pick(fixture.ids[0], 3000, random);
        lookahead.add(request, 0, prompt);
        // Once, so that some rows are staged for certain; later rounds race with the planner.
        for (int tries = 0; round == 0 && store->counters().lookahead_staged_rows == 0; ++tries) {
          CHECK(tries < 5000);
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        for (std::size_t chunk = 0; chunk < prompt.size(); chunk += 500) {
          read_and_check(*store, 0,
                         Ids(prompt.begin() + static_cast<std::ptrdiff_t>(chunk),
                             prompt.begin() + static_cast<std::ptrdiff_t>(chunk + 500)));
          lookahead.advance(request, 0, chunk + 500);
          if (random() % 9 == 0) break;  // aborted
        }
        lookahead.cancel(request);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int tries = 0; store->cache().ledger().total_rows() > 0; ++tries) {
    CHECK(tries < 1000);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(store->counters().lookahead_staged_rows > 0);
}

void budget_holds(const Fixture& fixture, BackendKind backend) {
  const auto store = open_store(fixture, backend, 0, 30'000);
  const Ids& prompt = fixture.ids[1];
  store->lookahead()->add(9, 1, prompt);
  std::uint64_t held = 0;
  for (int step = 0; step < 50; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    held = store->cache().ledger().total_rows();
    CHECK(held <= store->cache().num_slots());
  }
  CHECK(held > 0);
  read_and_check(*store, 1, Ids(prompt.begin(), prompt.begin() + 200));
  CHECK(store->counters().hit_rows > 150);
  store->lookahead()->cancel(9);
}

void close_while_busy(const Fixture& fixture, BackendKind backend) {
  for (int round = 0; round < 10; ++round) {
    const auto store = open_store(fixture, backend, 10'000, 30'000);
    store->lookahead()->add(1, 0, fixture.ids[0]);
    TestPlanes planes(fixture.ids[1].size());
    SubmitFault fault;
    const auto ticket = store->submit(1, fixture.ids[1], planes.out(), Priority::kDecode, fault);
    std::thread closer([&] { store->close(); });
    const TicketState state = ticket->wait(std::chrono::seconds(10));
    CHECK(state == TicketState::kDone || ticket->failure().error == ECANCELED);
    closer.join();
  }
}

void c_entry(const Fixture& fixture, BackendKind backend) {
  const auto store = open_store(fixture, backend, 0, 0);
  Ids ids(fixture.ids[0].begin(), fixture.ids[0].begin() + 100);
  TestPlanes planes(ids.size());
  std::int32_t status = 0;
  engram_host_call call{{store.get(), 0},     ids.data(),          ids.size(),
                        planes.weight.data(), planes.scale.data(), &status};
  engram_run_host_call(&call);
  CHECK(status == 0 && planes.holds(99, 0, ids[99]));
  ids[7] = -5;
  engram_run_host_call(&call);
  CHECK(status == -ERANGE);
}

// Sets this thread's effective right to act as any file's owner; false when it has none to give or take.
bool act_as_any_owner(bool allowed) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  CHECK(syscall(SYS_capget, &header, data) == 0);
  constexpr std::uint32_t kFowner = 1U << CAP_FOWNER;
  if ((data[0].permitted & kFowner) == 0) return false;
  data[0].effective = allowed ? data[0].effective | kFowner : data[0].effective & ~kFowner;
  return syscall(SYS_capset, &header, data) == 0;
}

// Only a file's owner may spare the access time; anybody else's store must open all the same.
void access_time_is_spared(const Fixture& fixture) {
  const std::string& path = fixture.paths[0];
  const auto spares_access_time = [&] {
    FileHandle file;
    OpenFault fault;
    CHECK(open_direct(path, true, file, fault) == 0);
    return (fcntl(file.fd(), F_GETFL) & O_NOATIME) != 0;
  };
  CHECK(spares_access_time());
  constexpr uid_t kSomebody = 65534;
  if (chown(path.c_str(), kSomebody, static_cast<gid_t>(-1)) != 0) return;  // needs root
  if (act_as_any_owner(false)) {
    CHECK(!spares_access_time());
    CHECK(act_as_any_owner(true));
  }
  CHECK(chown(path.c_str(), geteuid(), static_cast<gid_t>(-1)) == 0);
}

}  // namespace

int main() {
  const Fixture fixture;
  access_time_is_spared(fixture);
  for (const BackendKind backend : {BackendKind::kThreads, BackendKind::kUring}) {
    many_threads(fixture, backend);
    lookahead_requests(fixture, backend);
    budget_holds(fixture, backend);
    close_while_busy(fixture, backend);
    c_entry(fixture, backend);
  }
  return 0;
}
