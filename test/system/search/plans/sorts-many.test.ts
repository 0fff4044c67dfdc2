/** Sorts by values in a Project of more than 100,000 rows: ordered pages in both directions, with few buffers. */
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Client } from '../../../fixtures/client.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'
import { memberUnder } from '../../../fixtures/policy/policy.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'

const botica = await openBotica(t, { env: { DATABASE_URL: await createDatabase(t) } })
const { admin, services } = botica
const run = (text: string, values: unknown[] = []) => services.database.query<Raw>({ text, values })

const COPIES = 36_000
const NAMELESS = 30
const ORGANIZATIONS = [
  '11111111-1111-4111-8111-111111111111',
  '22222222-2222-4222-8222-222222222222',
]

/** Copies a resource with its rows. `nnnnnn`, which no id contains, becomes the number of the copy; dates vary by day. */
async function copy(id: string, copies: number): Promise<void> {
  await run('drop table if exists copied')
  await run(
    `create table copied as select i, gen_random_uuid() as id,
        lpad(((i::bigint * 7919) % 20011)::text, 6, '0') as n from generate_series(1, $1::int) i`,
    [copies],
  )
  await run(
    `insert into version select v.project, v.type, c.id, v.ver, v.lu, v.author,
        replace(replace(replace(v.content, $2, c.id::text), 'nnnnnn', c.n), '2001-01-01',
          to_char(date '2001-01-01' + c.i % 5000, 'YYYY-MM-DD')), v.meta_at, v.meta_ext
      from version v, copied c where v.id = $1::uuid`,
    [id, id],
  )
  await run(
    `insert into resource select r.project, r.type, c.id, r.ver, r.lu, r.d_lo, r.d_hi, r.nref,
        array[c.i] || r.keys[2:] from resource r, copied c where r.id = $1::uuid`,
    [id],
  )
  await run(
    `insert into idx_string select s.project, s.type, s.p, replace(s.v, 'nnnnnn', c.n), c.id
      from idx_string s, copied c where s.id = $1::uuid`,
    [id],
  )
  await run(
    `insert into idx_range select g.project, g.type, g.p, g.lo + c.i % 5000 * 86400000.0,
        g.hi + c.i % 5000 * 86400000.0, g.u, c.id from idx_range g, copied c where g.id = $1::uuid`,
    [id],
  )
}

const [ours, theirs] = ORGANIZATIONS.map((id) => ({ reference: `Organization/${id}` }))
for (const [template, copies] of [
  [{ name: [{ family: 'Annnnnn' }], gender: 'female', managingOrganization: ours }, COPIES],
  [
    {
      name: [{ family: 'Bnnnnnn' }],
      gender: 'male',
      deceasedDateTime: '2001-01-01',
      managingOrganization: ours,
    },
    COPIES,
  ],
  [
    {
      name: [{ family: 'Annnnnn', given: ['Ann'] }, { family: 'Znnnnnn' }],
      gender: 'male',
      managingOrganization: theirs,
    },
    COPIES,
  ],
  [{ gender: 'male', managingOrganization: theirs }, NAMELESS],
] as const) {
  const { id = '' } = await admin.create({ resourceType: 'Patient', ...template })
  await copy(id, copies)
  await admin.del(`Patient/${id}`)
}
await run('vacuum analyze')

interface Row {
  readonly id: string
  readonly gender: string
  readonly organization: string
  readonly families: readonly string[]
  readonly death: string | undefined
}

const rows: Row[] = (
  await run(
    `select v.id, v.content from version v join resource r on r.id = v.id and r.project = v.project
      where v.content like '{"resourceType":"Patient"%'`,
  )
).map(({ id, content }: Raw) => {
  const { gender, managingOrganization, name = [], deceasedDateTime } = JSON.parse(content)
  return {
    id,
    gender,
    organization: managingOrganization.reference,
    families: name.map(({ family }: Raw) => family.toLowerCase()).sort(),
    death: deceasedDateTime,
  }
})

const VALUES: Readonly<Record<string, (row: Row) => string | undefined>> = {
  family: ({ families }) => families[0],
  '-family': ({ families }) => families.at(-1),
  'death-date': ({ death }) => death,
  '-death-date': ({ death }) => death,
}
const order = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0)

/** Missing values sort last, or first when descending; ties sort by id. */
function sorted(sort: string, isMatch: (row: Row) => boolean): readonly string[] {
  const terms = sort.split(',').map((name) => {
    const direction = name.startsWith('-') ? -1 : 1
    const valueIn = VALUES[name]
    return (a: Row, b: Row) => direction * order(valueIn?.(a) ?? '\uffff', valueIn?.(b) ?? '\uffff')
  })
  const compare = (a: Row, b: Row) =>
    terms.reduce((found, term) => found || term(a, b), 0) || order(a.id, b.id)
  return rows
    .filter(isMatch)
    .sort(compare)
    .map(({ id }) => id)
}

interface Page {
  readonly ids: readonly string[]
  readonly next: string | undefined
  readonly previous: string | undefined
}

async function page(client: Client, url: string): Promise<Page> {
  const { status, body, text } = await client.get<Raw>(url)
  if (status !== 200) throw new Error(`${url} answered ${status}: ${text}`)
  const linkTo = (relation: string) =>
    body.link.find((link: Raw) => link.relation === relation)?.url
  const ids = (body.entry ?? []).map(({ resource }: Raw) => resource.id)
  return { ids, next: linkTo('next'), previous: linkTo('previous') }
}

/** Counts the buffers that a search touches. */
async function touched(url: string): Promise<number> {
  const { text } = await admin.get(`${url}&_explain=true`)
  const [, hit = '0', read = '0'] =
    /Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?/.exec(text) ?? []
  return Number(hit) + Number(read)
}

const limited = await memberUnder(botica, {
  entries: [{ resourceType: 'Patient', criteria: `Patient?organization=${ours?.reference}` }],
})

t.test('has more than 100,000 rows', async (t) => {
  t.ok(rows.length > 100_000, `${rows.length}`)
})

const CASES: readonly (readonly [
  search: string,
  sort: string,
  isMatch: (row: Row) => boolean,
  client?: Client,
])[] = [
  ['', 'family', () => true],
  ['', '-family', () => true],
  ['', 'death-date', () => true],
  ['', '-death-date', () => true],
  ['', 'family,death-date', () => true],
  ['', '-family,-death-date', () => true],
  ['gender=male', 'family', ({ gender }) => gender === 'male'],
  ['gender=male', '-death-date', ({ gender }) => gender === 'male'],
  ['name=z0100', 'family', ({ families }) => families.some((name) => name.startsWith('z0100'))],
  ['family=b', '-family', ({ families }) => families.some((name) => name.startsWith('b'))],
  ['', 'family', ({ organization }) => organization === ours?.reference, limited.client],
  ['', '-family', ({ organization }) => organization === ours?.reference, limited.client],
  [
    'gender=female',
    '-death-date',
    ({ gender, organization }) => gender === 'female' && organization === ours?.reference,
    limited.client,
  ],
]

for (const [search, sort, isMatch, client = admin] of CASES) {
  const who = client === admin ? '' : ' under a policy'
  t.test(`orders pages of Patient?${search}&_sort=${sort}${who}`, async (t) => {
    const expected = sorted(sort, isMatch)
    const url = `Patient?${search}&_sort=${sort}&_count=17`
    const first = await page(client, url)
    t.same(first.ids, expected.slice(0, 17))
    const second = await page(client, first.next ?? '')
    t.same(second.ids, expected.slice(17, 34))
    t.same((await page(client, second.previous ?? '')).ids, first.ids, 'and back')
    const far = `Patient?${search}&_sort=${sort}&_count=500`
    let at = 0
    for (let next: string | undefined = far; next !== undefined && at < 3000; ) {
      const found: Page = await page(client, next)
      t.same(found.ids, expected.slice(at, at + 500), `from ${at}`)
      at += found.ids.length
      next = found.next
    }
  })
}

for (const [sort, client, isMatch] of [
  ['family', admin, () => true],
  ['-family', admin, () => true],
  ['-death-date', limited.client, ({ organization }) => organization === ours?.reference],
] as const satisfies readonly (readonly [string, Client, (row: Row) => boolean])[]) {
  t.test(`walks all pages by ${sort} to the end`, async (t) => {
    const ids: string[] = []
    for (let next: string | undefined = `Patient?_sort=${sort}&_count=1000&_elements=id`; next; ) {
      const found: Page = await page(client, next)
      ids.push(...found.ids)
      next = found.next
    }
    t.same(ids, sorted(sort, isMatch))
  })
}

for (const [url, most] of [
  ['Patient?_sort=family', 700],
  ['Patient?_sort=-family', 700],
  ['Patient?_sort=death-date', 700],
  ['Patient?_sort=family,death-date', 1500],
  ['Patient?gender=male&_sort=family', 1500],
] as const) {
  t.test(`touches at most ${most} buffers for a page of ${url}`, async (t) => {
    const count = await touched(url)
    t.ok(count > 0 && count <= most, `${count}`)
  })
}
