import path from 'node:path'
import { buffer } from 'node:stream/consumers'
import t from 'tap'
import { allocatePages, pageBytes } from '../shared/pages.ts'
import { openDisk } from '../shared/storage-disk.ts'

const PAGE = 4096

/** Memory that begins on a page, with other bytes in each place. */
function onPages(bytes: number, seed: number): Buffer {
  const room = allocatePages(bytes + 1)
  for (let at = 0; at < bytes; at++) room[at] = (at * seed) % 251
  return room.subarray(0, bytes)
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
  ['a few MiB', [3 * 1024 * 1024 + 5]],
] as const) {
  for (const memory of ['pages', 'other memory', 'memory beside pages'] as const) {
    t.test(`${what} in ${memory} is kept as it is`, async (t) => {
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

t.test('only memory and places on pages are pages', async (t) => {
  const room = allocatePages(3 * PAGE - 1)
  t.equal(room.length, 3 * PAGE)
  t.equal(pageBytes(room, 0), 3 * PAGE)
  t.equal(pageBytes(room.subarray(0, PAGE + 1), 2 * PAGE), PAGE)
  t.equal(pageBytes(room, 1), 0)
  t.equal(pageBytes(room.subarray(1), 0), 0)
  t.equal(pageBytes(Buffer.alloc(3 * PAGE), 0), 0)
})
