/** A patient at a glance: identity and latest data. */
import { Anchor, Badge, Card, Group, SimpleGrid, Stack, Text, Title } from '@mantine/core'
import { calculateAge, formatAddress, formatCodeableConcept, isObject } from '@medplum/core'
import type { Bundle, Observation, Patient, Resource } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { lazy, Suspense } from 'react'
import { Link } from 'wouter'
import { entryError } from '../../client/api.ts'
import { Problem } from '../../client/problem.tsx'
import { mayDo, medplum, useMe } from '../../client/session.ts'
import { readElement } from '../../client/titles.ts'
import { Loaded, Waiting } from '../../parts/loaded.tsx'
import { Hint, TextLink } from '../../parts/text.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { absentReason, RecordName, Value } from './values.tsx'

const words = texts.patient

// The chart library is as large as the rest of the page.
const Trend = lazy(() => import('./trend.tsx').then(({ Trend: trend }) => ({ default: trend })))

interface Props {
  readonly patient: Patient
}

export function PatientSummary({ patient }: Props) {
  const me = useMe()
  const shown = SECTIONS.filter(({ type }) => mayDo(me, type))
  const sections = useQuery({
    queryKey: ['patient', patient.id, shown.length],
    queryFn: () => readSections(shown, patient.id ?? ''),
  })
  return (
    <Stack>
      <Banner patient={patient} />
      <Loaded query={sections}>
        {(found) => (
          <>
            <SimpleGrid cols={{ base: 1, md: 2, xl: 3 }}>
              {found.map((section) => (
                <SectionCard key={section.name} {...section} />
              ))}
            </SimpleGrid>
            <Observations found={found} />
          </>
        )}
      </Loaded>
    </Stack>
  )
}

function Banner({ patient }: Props) {
  const { birthDate, deceasedBoolean, deceasedDateTime, gender, identifier, telecom, address } =
    patient
  const isDeceased = deceasedBoolean === true || deceasedDateTime !== undefined
  const age = birthDate && formatAge(birthDate, deceasedDateTime)
  const born = birthDate ?? absentReason(patient, 'birthDate')
  const number = identifier?.find(({ type }) => type?.coding?.[0]?.code === 'MR') ?? identifier?.[0]
  const facts = [
    [words.born, [born, age && `(${age})`].filter(Boolean).join(' ')],
    [words.gender, gender],
    [words.number, number?.value],
    [words.contact, telecom?.find(({ value }) => value)?.value],
    [words.address, address?.[0] && formatAddress(address[0])],
  ] as const
  return (
    <Card withBorder>
      <Group gap="xl">
        {isDeceased && (
          <Badge color="gray">
            {deceasedDateTime
              ? fill(words.deceasedOn, { date: deceasedDateTime.slice(0, 10) })
              : words.deceased}
          </Badge>
        )}
        {facts.map(([name, value]) =>
          value ? (
            <div key={name}>
              <Text size="xs" c="dimmed">
                {name}
              </Text>
              <Text size="sm">{value}</Text>
            </div>
          ) : null,
        )}
      </Group>
    </Card>
  )
}

/** In years; in months for infants. The age at death for the deceased. */
function formatAge(birthDate: string, end: string | undefined): string {
  const { years, months } = calculateAge(birthDate, end)
  return years >= 2 ? fill(words.years, { years }) : fill(words.months, { months })
}

interface Section {
  readonly name: keyof typeof words.sections
  readonly type: string
  readonly query: string
  readonly sort: string
  readonly count: number
  /** Shown after the title of each record. */
  readonly detail: string
}

const FEW = 6
/**
 * Excludes the codes of problems that are over: https://hl7.org/fhir/R4/valueset-condition-clinical.html. The status is
 * optional, and a problem without one may be present.
 */
const PRESENT = 'clinical-status:not=inactive,remission,resolved'
const WRONG = 'entered-in-error'
const VERIFIED = `verification-status:not=${WRONG},refuted`
const VALID = `status:not=${WRONG}`
const SECTIONS: readonly Section[] = [
  section('problems', 'Condition', `${PRESENT}&${VERIFIED}`, '-recorded-date', 'onset[x]'),
  section('allergies', 'AllergyIntolerance', VERIFIED, '-date', 'criticality'),
  section('medications', 'MedicationRequest', 'status=active', '-authoredon', 'authoredOn'),
  section('encounters', 'Encounter', VALID, '-date', 'period'),
  section('reports', 'DiagnosticReport', VALID, '-date', 'effective[x]'),
  section('documents', 'DocumentReference', VALID, '-date', 'date'),
  { ...section('observations', 'Observation', VALID, '-date', 'value[x]'), count: 200 },
]

function section(
  name: Section['name'],
  type: string,
  query: string,
  sort: string,
  detail: string,
): Section {
  // One more than is shown, to know whether there are more.
  return { name, type, query, sort, count: FEW + 1, detail }
}

interface FoundSection extends Section {
  readonly records: readonly Resource[]
  /** Why the records are unknown. */
  readonly error: unknown
  readonly href: string
}

async function readSections(
  sections: readonly Section[],
  id: string,
): Promise<readonly FoundSection[]> {
  const searches = sections.map(({ type, query, sort, count }) => {
    const conditions = new URLSearchParams(query)
    conditions.set(type === 'AllergyIntolerance' ? 'patient' : 'subject', `Patient/${id}`)
    return { type, conditions, page: `_sort=${sort}&_count=${count}` }
  })
  const answer: Bundle = await medplum.executeBatch({
    resourceType: 'Bundle',
    type: 'batch',
    entry: searches.map(({ type, conditions, page }) => ({
      request: { method: 'GET' as const, url: `${type}?${conditions}&${page}` },
    })),
  })
  return sections.map((one, place) => {
    const { resource: found, response } = answer.entry?.[place] ?? {}
    const isFound = found?.resourceType === 'Bundle'
    const entries = isFound ? (found.entry ?? []) : []
    return {
      ...one,
      records: entries.flatMap(({ resource }) => (resource ? [resource] : [])),
      error: isFound ? null : entryError(response),
      href: `/resources/${one.type}?${searches[place]?.conditions}`,
    }
  })
}

function SectionCard({ name, href, records, error, detail }: FoundSection) {
  return (
    <Card withBorder padding="sm">
      <Group justify="space-between">
        <Title size="h5">{words.sections[name]}</Title>
        <TextLink href={href}>{words.all}</TextLink>
      </Group>
      <Problem error={error} />
      {error === null && records.length === 0 && <Hint>{words.none}</Hint>}
      {records.slice(0, FEW).map((record) => (
        <Group key={record.id} justify="space-between" wrap="nowrap" gap="sm">
          <Anchor
            component={Link}
            href={`/resources/${record.resourceType}/${record.id}`}
            size="sm"
            truncate
          >
            <RecordName record={record} />
          </Anchor>
          <Text size="sm" c="dimmed" component="div" style={{ whiteSpace: 'nowrap' }}>
            <Value
              value={[clinicalStatus(record), asDay(readElement(record, detail))].filter(Boolean)}
            />
          </Text>
        </Group>
      ))}
      {records.length > FEW && <TextLink href={href}>{fill(words.more, { count: FEW })}</TextLink>}
    </Card>
  )
}

/** Whether a problem or an allergy is still present; undefined for other records. */
function clinicalStatus(record: Resource): string | undefined {
  const { resourceType: type } = record
  if (type !== 'Condition' && type !== 'AllergyIntolerance') return undefined
  return formatCodeableConcept(record.clinicalStatus) || words.noStatus
}

/** A day is enough here; the record has the time. */
function asDay(value: unknown): unknown {
  if (isObject(value) && 'start' in value) return asDay(value.start)
  const isTime = typeof value === 'string' && /^\d{4}-\d\d-\d\dT/.test(value)
  return isTime ? value.slice(0, 10) : value
}

interface ObservationsProps {
  readonly found: readonly FoundSection[]
}

function Observations({ found }: ObservationsProps) {
  const records = found.find(({ type }) => type === 'Observation')?.records ?? []
  const measured = records.filter((record): record is Observation => {
    return record.resourceType === 'Observation' && record.valueQuantity?.value !== undefined
  })
  if (measured.length < 2) return null
  return (
    <Suspense fallback={<Waiting />}>
      <Trend observations={measured} />
    </Suspense>
  )
}
