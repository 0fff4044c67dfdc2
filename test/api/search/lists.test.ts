import t from 'tap'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica

const FAMILIES = ['kept', 'gone', 'both', 'stays', 'other']
const made = await Promise.all(
  FAMILIES.map((family) => admin.create(aPatient({ name: [{ family }] }))),
)
const names = new Map(made.map(({ id }, i) => [id, FAMILIES[i]]))
const [kept, gone, both, stays, other] = made.map(({ id }) => `Patient/${id}`)
for (const subject of [kept, gone]) await admin.create(anObservation(subject ?? ''))

const aList = (entry: object[]) => ({
  resourceType: 'List',
  status: 'current',
  mode: 'changes',
  entry,
})
const anEntry = (reference: string | undefined, deleted?: boolean) => ({
  item: { reference },
  ...(deleted === undefined ? {} : { deleted }),
})
const first = await admin.create(
  aList([
    anEntry(kept),
    anEntry(gone, true),
    anEntry(both, true),
    anEntry(both),
    anEntry(stays, false),
    { deleted: true, item: { display: 'Somebody' } },
  ]),
)
const second = await admin.create(aList([anEntry(gone), anEntry(other), anEntry(kept, true)]))

const found = async (query: string, client = admin): Promise<string[]> => {
  const { status, body, text } = await client.get<Raw>(query)
  if (status !== 200) throw new Error(`${query} answered ${status}: ${text}`)
  const ids: string[] = (body.entry ?? []).map(({ resource }: Raw) => {
    return names.get(resource.id) ?? names.get(resource.subject?.reference.slice(8))
  })
  return ids.sort()
}

const CASES: readonly (readonly [query: string, ...expected: string[]])[] = [
  [`Patient?_list=${first.id}`, 'both', 'kept', 'stays'],
  [`Patient?_list=List/${first.id}`, 'both', 'kept', 'stays'],
  [`Patient?_list=${second.id}`, 'gone', 'other'],
  [`Patient?_list=${first.id},${second.id}`, 'both', 'gone', 'kept', 'other', 'stays'],
  [`Patient?_list=${first.id}&_list=${second.id}`],
  [`Patient?_list=${first.id}&family=gone`],
  [`Patient?_filter=_list eq ${first.id} and family ne both`, 'kept', 'stays'],
  [`Patient?_filter=_list ne ${first.id}`, 'gone', 'other'],
  [`Observation?_filter=patient._list ne ${first.id}`, 'gone'],
  [`Observation?patient._list=${first.id}`, 'kept'],
  [`Observation?patient._list=${second.id}`, 'gone'],
  [`Patient?_has:Observation:patient:subject:Patient._list=${first.id}`, 'kept'],
  // `item` finds deleted entries too; `_list` does not.
  [`Patient?_has:List:item:_id=${first.id}`, 'both', 'gone', 'kept', 'stays'],
]

t.test('excludes entries marked as deleted from the members of a List', async (t) => {
  for (const [query, ...expected] of CASES) {
    t.same(await found(query), expected, query)
    const { body } = await admin.get<Raw>(`${query}&_summary=count`)
    t.equal(body.total, expected.length, `total of ${query}`)
  }
  t.equal((await admin.get<Raw>(`List?item=${gone}`)).body.entry.length, 2)
})

t.test('finds members of a List with one statement', async (t) => {
  const ask = () => admin.get(`Patient?_list=${first.id}`)
  t.equal(await statementsAsked(botica.services, admin, ask), 1)
})

t.test('hides deleted entries under a policy for the members of a List', async (t) => {
  const criteria = `Patient?_list=${first.id}`
  const { client } = await memberUnder(botica, { entries: [{ resourceType: 'Patient', criteria }] })
  t.same(await found('Patient', client), ['both', 'kept', 'stays'])
  t.same(await found('Patient?family=gone,kept', client), ['kept'])
  t.equal((await client.get(kept ?? '')).status, 200)
  t.equal((await client.get(gone ?? '')).status, 404)
})

t.test('searches the current version of a List', async (t) => {
  const { id } = await admin.create(aList([anEntry(kept)]))
  for (const [deleted, expected] of [
    [true, []],
    [false, ['kept']],
    [true, []],
  ] as const) {
    const { status } = await admin.put(`List/${id}`, { ...aList([anEntry(kept, deleted)]), id })
    t.equal(status, 200)
    t.same(await found(`Patient?_list=${id}`), expected)
  }
})
