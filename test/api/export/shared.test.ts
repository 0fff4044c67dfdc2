/** Imports the runner of parts, to interrupt an export at chosen lines. */
import { randomBytes } from 'node:crypto'
import t from 'tap'
import { LeaseLost } from '../../../shared/core/errors.ts'
import { createBlocks } from '../../../shared/export/block.ts'
import { addBlocks, listFiles } from '../../../shared/export/rows/files.ts'
import {
  type LeasedExportPart,
  leaseExportPart,
  PARTS,
  partLease,
} from '../../../shared/export/rows/parts.ts'
import { RELEASE, releasePart } from '../../../shared/jobs/part-queue.ts'
import type { Storage } from '../../../shared/outbound/storage/storage.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import {
  type Exported,
  exportAll,
  exportedAt,
  idsIn,
  kickOff,
} from '../../fixtures/exports/exports.ts'
import { openExporting, runTaken } from '../../fixtures/exports/steps.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEncounter, anObservation, aPatient, aProvenance } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'
import { countStatements } from '../../fixtures/store/store.ts'

const botica = await openBotica(t, {
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin, services } = botica
const { database } = services
// Blocks of level 0 are stored in their order.
const exporting = openExporting(t, services, { blocks: createBlocks(0) })

/**
 * Statements of a plan, including its time transaction and the session read. Parts begin without a
 * cached session, because its age depends on the machine.
 */
const PLANNING = 13
/** Statements of a Group export: three polls for a part, the plan, reads, records and the end. */
const EXPORTING = PLANNING + 18

const patients = await Promise.all([1, 2, 3].map(() => admin.create(aPatient())))
const [first, second, third] = patients.map(({ id }) => `Patient/${id}`)
for (const subject of [first, second, third]) {
  await admin.create(anEncounter(subject ?? ''))
  await admin.create(anObservation(subject ?? '', { status: 'preliminary' }))
  await admin.create(aCondition(subject, {}))
  await admin.create({ ...aCondition(subject, {}), resourceType: 'Procedure', status: 'completed' })
}
const group = await createGroup(first, second)
const OTHERS = ['Condition', 'Encounter', 'Observation', 'Patient', 'Procedure']

t.test('exports listed types in one part', async (t) => {
  const url = await kickOff(admin, `Group/${group}/$export`)
  const kinds: (string | undefined)[] = []
  const statements = await countStatements(database, async () => {
    let taken = await leaseExportPart(database)
    while (taken !== undefined) {
      kinds.push(taken.part.kind)
      services.principals.forget()
      await run(taken)
      taken = await leaseExportPart(database)
    }
  })
  t.same(kinds, ['plan', 'listed', 'close'])
  t.equal(statements, EXPORTING)
  const exported = await exportedAt(admin, url)
  t.same(
    countByType(exported),
    OTHERS.map((type) => [type, 2]),
  )
  await isAsRead(admin, exported)
})

t.test('runs a constant number of statements to plan, and more with Provenance', async (t) => {
  const planned = async (members: readonly string[]) => {
    const url = await kickOff(admin, `Group/${await createGroup(...members)}/$export`)
    const taken = await leaseExportPart(database)
    services.principals.forget()
    const statements = await countStatements(database, () => run(taken))
    t.equal((await admin.del(url)).status, 202)
    return statements
  }
  const some = await Promise.all(Array.from({ length: 30 }, () => admin.create(aPatient())))
  const members = some.map(({ id }) => `Patient/${id}`)
  await planned(members)
  t.same([await planned(members.slice(0, 1)), await planned(members)], [PLANNING, PLANNING])
  await admin.create(aProvenance(members.slice(0, 1)))
  t.equal(await planned(members), PLANNING + 4)
})

t.test('resumes a part shared by several types', async (t) => {
  const own = await aLargePatient()
  const url = await kickOff(admin, `Group/${await createGroup(own)}/$export`)
  await run(await leaseExportPart(database))
  let taken = await leaseExportPart(database)
  let most = 0
  let token = 0
  const reached = new Set<string>()
  const failures: unknown[] = []
  while (taken?.part.kind === 'listed' && most < 20) {
    const { part } = taken
    const lease = partLease(taken)
    token = part.token
    reached.add(`${part.type} ${part.after}`)
    most += 1
    await run(taken, failingAfter(most)).catch(async (error: unknown) => {
      failures.push(error)
      await releasePart(database, PARTS, lease, RELEASE)
    })
    taken = await leaseExportPart(database)
  }
  const full = { status: 503, cause: { message: 'The disk is full' } }
  t.match(failures, Array(failures.length).fill(full))
  t.ok(token > 3, 'the part was interrupted several times')
  t.ok(reached.size > 2, 'does not restart each time')
  await run(taken)
  await isWhole(own, await exportedAt(admin, url))
})

t.test('changes nothing after the lease of a shared part is lost', async (t) => {
  const url = await kickOff(admin, `Group/${group}/$export`)
  await run(await leaseExportPart(database))
  const taken = await leaseExportPart(database)
  await database.query({
    text: `update export_part set lease = clock_timestamp() where state = 'active'`,
    values: [],
  })
  const again = await leaseExportPart(database)
  t.ok((await run(taken).catch((error: unknown) => error)) instanceof LeaseLost)
  await run(again)
  await run(await leaseExportPart(database))
  const exported = await exportedAt(admin, url)
  t.same(
    idsIn(exported, 'Patient'),
    patients
      .slice(0, 2)
      .map(({ id }) => id)
      .sort(),
  )
})

t.test('numbers files that complete together separately, and closes them once', async (t) => {
  const url = await kickOff(admin, `Group/${group}/$export`)
  await run(await leaseExportPart(database))
  const taken = await leaseExportPart(database)
  if (taken === undefined) throw new Error('There is no part')
  const { job, part } = taken
  await database.query({
    text: `insert into export_part (job, n, kind, state, epoch)
      select $1, n, 'output', 'active', 1 from generate_series(3, 8) n`,
    values: [job.id],
  })
  const blocks = [0, 1].map((seq) => {
    const file = { seq, type: 'Patient', crc: 1, goesOn: false }
    return { file, block: [1, seq, 9, 9, 1], isWhole: true } as const
  })
  const reached = { type: 'Patient', after: job.id }
  const written = { kind: 'output', blocks, reached, isLast: true } as const
  const ended = await Promise.all(
    [part.n, 3, 4, 5, 6, 7, 8].map((n) =>
      addBlocks(database, { job, part: { ...part, n } }, written),
    ),
  )
  const files = await listFiles(database, job.id)
  t.same(
    files.map(({ number }) => number),
    Array.from({ length: 14 }, (_, i) => i + 1),
  )
  t.same(new Set(ended), new Set([true]))
  t.match(await leaseExportPart(database), { part: { kind: 'close', token: 1 } })
  t.equal(await leaseExportPart(database), undefined)
  t.equal((await admin.del(url)).status, 202)
})

t.test('applies policy criteria and hidden fields as a read does', async (t) => {
  await botica.startWorker()
  const { client } = await botica.createMember({
    accessPolicy: await createPolicy(
      { resourceType: 'Group' },
      { resourceType: 'Patient', hiddenFields: ['name'] },
      { resourceType: 'Encounter' },
      { resourceType: 'Observation', criteria: `Observation?subject=${first}` },
      { resourceType: 'Condition', hiddenFields: ['code'] },
    ),
  })
  const exported = await exportAll(client, `Group/${group}/$export`)
  t.same(countByType(exported), [
    ['Condition', 2],
    ['Encounter', 2],
    ['Observation', 1],
    ['Patient', 2],
  ])
  t.notMatch(exported.resources.get('Patient'), [{ name: [] }])
  await isAsRead(client, exported)
  const system = await exportAll(client, '$export?_type=Patient,Condition,Observation')
  t.equal(system.manifest.output.length, 3)
  await isAsRead(client, system)
})

function run(taken: LeasedExportPart | undefined, storage: Storage = services.storage) {
  return runTaken({ ...exporting, storage }, taken)
}

function failingAfter(most: number): Storage {
  let count = 0
  return {
    ...services.storage,
    async put(key, source) {
      count += 1
      if (count > most) throw new Error('The disk is full')
      return services.storage.put(key, source)
    },
  }
}

async function aLargePatient(): Promise<string> {
  const { id } = await admin.create(aPatient())
  const subject = `Patient/${id}`
  const extension = () => [
    { url: 'https://example.org/scan', valueString: randomBytes(600_000).toString('base64') },
  ]
  for (let i = 0; i < 13; i++)
    await admin.create(anObservation(subject, { extension: extension() }))
  for (let i = 0; i < 9; i++) await admin.create(aCondition(subject, { extension: extension() }))
  for (let i = 0; i < 3; i++) await admin.create(anEncounter(subject))
  return subject
}

function aCondition(subject: string | undefined, more: object): Resource {
  return {
    resourceType: 'Condition',
    subject: { reference: subject },
    code: { text: 'Cough' },
    ...more,
  }
}

async function createGroup(...members: readonly (string | undefined)[]): Promise<string> {
  const member = members.map((reference) => ({ entity: { reference } }))
  const made = await admin.create({ resourceType: 'Group', type: 'person', actual: true, member })
  return made.id
}

async function createPolicy(...resource: readonly unknown[]) {
  const { id } = await admin.create({ resourceType: 'AccessPolicy', resource })
  return { reference: `AccessPolicy/${id}` }
}

async function isWhole(subject: string, exported: Exported): Promise<void> {
  t.same(countByType(exported), [
    ['Condition', 9],
    ['Encounter', 3],
    ['Observation', 13],
    ['Patient', 1],
  ])
  for (const type of ['Condition', 'Encounter', 'Observation']) {
    const { body } = await admin.get<{ entry: { resource: Resource }[] }>(
      `${type}?subject=${subject}&_count=100&_elements=id`,
    )
    t.same(idsIn(exported, type), body.entry.map(({ resource }) => resource.id).sort(), type)
  }
}

function countByType({ manifest }: Exported) {
  return manifest.output.flatMap(({ type, count }) => (type === 'Group' ? [] : [[type, count]]))
}

async function isAsRead(client: Client, { resources }: Exported): Promise<void> {
  for (const [type, own] of resources) {
    for (const resource of own) {
      t.same(resource, (await client.get(`${type}/${resource.id}`)).body)
    }
  }
}
