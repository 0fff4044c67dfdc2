import t from 'tap'
import { type Applicant, createHashing } from '../../../shared/access/credentials/hashing.ts'

/** A queue whose work the test ends; `answered` lists callers and their results in order. */
function aQueue(depth: number, atOnce = 1) {
  const hashing = createHashing(depth, atOnce)
  const answered: string[] = []
  const ends = new Map<string, () => void>()
  const ask = (name: string, applicant: Partial<Applicant> = {}) =>
    hashing
      .run({ account: name, address: name, trust: 'stranger', ...applicant }, async () => {
        await new Promise<void>((resolve) => ends.set(name, resolve))
      })
      .then(
        () => answered.push(`${name} done`),
        (error: { status: number }) => answered.push(`${name} ${error.status}`),
      )
  /** Ends the work of these callers, all of which must have begun. */
  const end = async (...names: string[]) => {
    for (const name of names) {
      ends.get(name)?.()
      await new Promise(setImmediate)
    }
    return answered
  }
  return { ask, end, answered, begun: () => [...ends.keys()] }
}

const settled = () => new Promise(setImmediate)

t.test('limits concurrent hashes and serves the newest waiter first', async (t) => {
  const { ask, end, begun } = aQueue(2, 2)
  for (const name of ['a', 'b', 'c', 'd', 'e']) void ask(name)
  await settled()
  t.same(begun(), ['a', 'b'])
  await end('a')
  t.same(begun(), ['a', 'b', 'e'])
  t.same(await end('b', 'e', 'd', 'c'), ['a done', 'b done', 'e done', 'd done', 'c done'])
})

t.test('drops the longest wait of the busiest address when the queue is full', async (t) => {
  const { ask, end, answered } = aQueue(3)
  const flood = { address: 'flood' }
  void ask('first', flood)
  void ask('elsewhere')
  for (const name of ['a', 'b', 'c', 'd']) void ask(name, flood)
  await settled()
  t.same(answered, ['a 429', 'b 429'])
  t.same(await end('first', 'elsewhere', 'd', 'c'), [
    'a 429',
    'b 429',
    'first done',
    'elsewhere done',
    'd done',
    'c done',
  ])
})

t.test('serves authenticated callers first and never drops them for others', async (t) => {
  const { ask, end, answered } = aQueue(2)
  void ask('running')
  void ask('stranger')
  void ask('known', { trust: 'proven' })
  void ask('regular', { trust: 'regular' })
  void ask('admin', { trust: 'proven' })
  void ask('late')
  await settled()
  t.same(answered, ['stranger 429', 'regular 429', 'late 429'])
  await end('running', 'admin', 'known')
  t.same(answered.slice(3), ['running done', 'admin done', 'known done'])
})

t.test('limits an account to five places across all addresses', async (t) => {
  const { ask, end, answered } = aQueue(20)
  const names = ['1', '2', '3', '4', '5', '6', '7']
  for (const name of names) void ask(name, { account: 'victim' })
  void ask('other')
  await settled()
  t.same(answered, ['6 429', '7 429'])
  await end('1', 'other')
  t.same(answered.slice(2), ['1 done', 'other done'])
  await end('5', '4', '3', '2')
})

t.test('frees the place of failed work', async (t) => {
  const hashing = createHashing(1, 1)
  const applicant: Applicant = { account: 'a', address: 'a', trust: 'stranger' }
  const failing = hashing.run(applicant, async () => {
    throw new Error('of the database')
  })
  const next = hashing.run(applicant, async () => 'next')
  await t.rejects(failing, { message: 'of the database' })
  t.equal(await next, 'next')
})
