/** AuditEvents of GraphQL reads, in a service that stores them. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { ask } from '../../fixtures/graphql.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { aPatient } from '../../fixtures/resources.ts'

const { admin, createMember } = await openBotica(t, { env: { GRAPHQL_AUDIT: 'resource' } })

interface Found {
  readonly entry?: readonly { readonly resource: Raw }[]
}

/** Waits for this many AuditEvents of a member's reads and returns them. */
async function readAuditEvents(member: string, count: number): Promise<readonly Raw[]> {
  let events: readonly Raw[] = []
  await until(async () => {
    const { body } = await admin.get<Found>(`AuditEvent?agent=${member}&type=rest&_count=100`)
    events = (body.entry ?? []).map(({ resource }) => resource)
    return events.length >= count
  }, 120_000)
  return events
}

t.test('records each search and group of reads once, with counts', async (t) => {
  const patients = [await admin.create(aPatient()), await admin.create(aPatient())]
  for (const { id } of patients) {
    const subject = { reference: `Patient/${id}` }
    const status = 'finished'
    await admin.create({ resourceType: 'Encounter', status, class: { code: 'AMB' }, subject })
  }
  const member = await createMember()
  const { body } = await ask(
    member.client,
    `{ PatientList(_count: 2) { id EncounterList(_reference: patient) { id } }
      one: Patient(id: "${patients[0]?.id}") { id } two: Patient(id: "${patients[1]?.id}") { id } }`,
  )
  t.notOk(body.errors)
  const events = await readAuditEvents(`ClientApplication/${member.id}`, 3)
  t.equal(events.length, 3)
  const told = events.map(({ subtype, entity: [{ description, detail, query }] }) => ({
    interaction: subtype[0].code,
    of: description,
    ...Object.fromEntries(detail.map(({ type, valueString }: Raw) => [type, valueString])),
    query: query && Buffer.from(query, 'base64').toString(),
  }))
  const wanted = [
    { interaction: 'search-type', of: 'Patient', count: '2', query: 'Patient?_count=2' },
    { interaction: 'search-type', of: 'Encounter', count: '2', parents: '2', query: 'Encounter?' },
    { interaction: 'read', of: 'Patient', count: '2', query: undefined },
  ]
  for (const event of wanted) {
    const isIt = ({ interaction, of }: Raw) => interaction === event.interaction && of === event.of
    t.same(told.find(isIt), event)
  }
  t.match(events[0], { outcome: '0', source: { observer: { reference: /^Project\// } } })
})
