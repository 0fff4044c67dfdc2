import { closeSync, constants, openSync, readFileSync, writeSync } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import path from 'node:path'
import { buffer } from 'node:stream/consumers'
import t from 'tap'
import {
  allocatePages,
  openDisk,
  pageBytes,
  writeWhole,
} from '../../../shared/outbound/storage/disk.ts'

const PAGE = 4096
/** Fewer pages than this go through the page cache. */
const MANY = 64

function onPages(bytes: number, seed: number): Buffer {
  const room = allocatePages(bytes + 1)
  for (let at = 0; at < bytes; at++) room[at] = (at * seed) % 251
  return Buffer.from(room.buffer, 0, bytes)
}

async function* inPieces(chunks: readonly Buffer[]): AsyncGenerator<Uint8Array> {
  yield* chunks
}

for (const [what, sizes] of [
  ['nothing', []],
  ['less than a page', [PAGE - 1]],
  ['a page', [PAGE]],
  ['pages and a rest', [5 * PAGE + 7]],
  ['pages behind a rest', [3 * PAGE + 1, 2 * PAGE, 2 * PAGE + 3]],
  ['pages behind pages', [2 * PAGE, 3 * PAGE + 9]],
  ['many pages', [MANY * PAGE]],
  ['many pages and a byte', [MANY * PAGE + 1]],
  ['many pages behind many pages and a rest', [(MANY + 1) * PAGE, MANY * PAGE + 9, MANY * PAGE]],
  ['a few MiB', [3 * 1024 * 1024 + 5]],
] as const) {
  for (const memory of ['pages', 'other memory', 'memory next to pages'] as const) {
    t.test(`stores ${what} in ${memory} unchanged`, async (t) => {
      const storage = openDisk(path.join(t.testdir(), 'files'))
      const chunks = sizes.map((bytes, i) => {
        if (memory === 'pages') return onPages(bytes, i + 3)
        if (memory === 'other memory') return Buffer.from(onPages(bytes, i + 3))
        return onPages(bytes + 5, i + 3).subarray(5)
      })
      const whole = Buffer.concat(chunks)
      await storage.put('a/file', inPieces(chunks))
      t.ok((await buffer(await storage.get('a/file'))).equals(whole))
      const middle = await storage.get('a/file', { start: 2, end: 2 * PAGE })
      if (whole.length > 2) t.ok((await buffer(middle)).equals(whole.subarray(2, 2 * PAGE + 1)))
      else middle.destroy()
    })
  }
}

t.test('treats only page-aligned memory and offsets as pages', async (t) => {
  const room = allocatePages(3 * PAGE - 1)
  t.equal(room.length, 3 * PAGE)
  t.equal(pageBytes(room, 0), 3 * PAGE)
  t.equal(pageBytes(room.subarray(0, PAGE + 1), 2 * PAGE), PAGE)
  t.equal(pageBytes(room, 1), 0)
  t.equal(pageBytes(room.subarray(1), 0), 0)
  t.equal(pageBytes(Buffer.alloc(3 * PAGE), 0), 0)
})

function bytesFromDisk(work: () => void): number {
  const read = () => Number(/^read_bytes: (\d+)$/m.exec(readFileSync('/proc/self/io', 'utf8'))?.[1])
  const before = read()
  work()
  return read() - before
}

/** Returns true if the file system shows that a write bypassed the page cache. */
function tellsDirectWrites(folder: string): boolean {
  const file = path.join(folder, 'direct')
  try {
    const { O_CREAT, O_WRONLY, O_DIRECT } = constants
    const descriptor = openSync(file, O_CREAT | O_WRONLY | O_DIRECT, 0o600)
    const written = writeSync(descriptor, onPages(MANY * PAGE, 3))
    closeSync(descriptor)
    return written === MANY * PAGE && bytesFromDisk(() => readFileSync(file)) >= written
  } catch {
    return false
  }
}

t.test('bypasses the page cache for whole pages where the file system supports it', async (t) => {
  const folder = t.testdir()
  if (!tellsDirectWrites(folder)) return t.comment('the file system does not show it')
  const storage = openDisk(folder)
  const size = 1024 * PAGE
  for (const [key, chunk, isDirect] of [
    ['a/direct', onPages(size + 5, 3), true],
    ['a/copied', Buffer.from(onPages(size + 5, 3)), false],
  ] as const) {
    await storage.put(key, inPieces([chunk]))
    const fromDisk = bytesFromDisk(() => readFileSync(path.join(folder, key)))
    t.equal(fromDisk >= size, isDirect, `${key}: read ${fromDisk} of ${size} bytes from disk`)
  }
})

function writingLess(handle: FileHandle, most: number): FileHandle {
  return new Proxy(handle, {
    get(target, name) {
      if (name !== 'write') {
        const value = Reflect.get(target, name)
        return typeof value === 'function' ? value.bind(target) : value
      }
      return (bytes: Uint8Array, offset: number, length: number, position: number) =>
        target.write(bytes, offset, Math.min(length, most), position)
    },
  })
}

t.test('continues after a partial write', async (t) => {
  const file = path.join(t.testdir(), 'file')
  const chunks = [Buffer.from(onPages(3 * PAGE + 1, 3)), Buffer.from(onPages(PAGE, 5))]
  const whole = Buffer.concat(chunks)
  await writeWhole(writingLess(await open(file, 'wx'), 1000), file, inPieces(chunks))
  t.ok(readFileSync(file).equals(whole))
})
