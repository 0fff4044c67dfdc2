/**
 * V8 shares its read-only pages among all isolates of a process. Executors start from Node's snapshot, the
 * isolates of bots from V8's own: that is sound as long as both have the same pages
 * (docs/decisions/0001-executors-are-processes.md).
 */
import { spawn } from 'node:child_process'
import { openSync, readFileSync, readSync } from 'node:fs'
import t, { type Test } from 'tap'

/** Answers where a read-only object is, and stays for its memory to be read. */
const SCRIPT = '%DebugPrint(undefined); setInterval(() => {}, 1000); console.log("ready")'
const WORD = 8
/** The page begins with a word that says where its record was allocated. */
const OWN_WORDS = 1

async function readOnlyPages(t: Test, flag: string): Promise<readonly bigint[]> {
  const args = [flag, '--hash-seed=42', '--allow-natives-syntax', '-e', SCRIPT]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  t.teardown(() => child.kill('SIGKILL'))
  let text = ''
  for await (const chunk of child.stdout) {
    text += chunk
    if (text.includes('ready')) break
  }
  const address = BigInt(/0x[0-9a-f]+/.exec(text)?.[0] ?? 0)
  const maps = readFileSync(`/proc/${child.pid}/maps`, 'latin1').matchAll(/^(\w+)-(\w+) r--p/gm)
  const [start, end] = [...maps]
    .map(([, from, to]) => [BigInt(`0x${from}`), BigInt(`0x${to}`)] as const)
    .find(([from, to]) => from <= address && address < to) ?? [0n, 0n]
  const bytes = Buffer.alloc(Number(end - start))
  readSync(openSync(`/proc/${child.pid}/mem`, 'r'), bytes, 0, bytes.length, start)
  return Array.from({ length: bytes.length / WORD }, (_, at) => {
    const word = bytes.readBigUInt64LE(at * WORD)
    // An address among the pages, which lie elsewhere in each process.
    return word >= start && word < end ? word - start : word
  })
}

t.test('isolates find the read-only pages of their own snapshot', async (t) => {
  if (process.platform !== 'linux') return
  const [ours, plain] = await Promise.all(
    ['--node-snapshot', '--no-node-snapshot'].map((flag) => readOnlyPages(t, flag)),
  )
  t.ok((ours?.length ?? 0) > 1000)
  t.equal(ours?.length, plain?.length)
  t.ok((ours ?? []).filter((word, at) => word !== plain?.[at]).length <= OWN_WORDS)
})
