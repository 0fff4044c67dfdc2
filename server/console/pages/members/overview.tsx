/** A sentence for each type with the number of records that a member sees, and the policy entries that decide. */
import { List, Select, Stack, Text } from '@mantine/core'
import type {
  AccessPolicy,
  AccessPolicyResource,
  Bundle,
  Parameters,
  ParametersParameter,
  ProjectMembership,
} from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { useGet } from '../../client/api.ts'
import { type Condition, splitCriteria } from '../../client/policies.ts'
import { Problem } from '../../client/problem.tsx'
import { medplum, useMe } from '../../client/session.ts'
import { useTypes } from '../../client/types.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { Hint } from '../../parts/text.tsx'
import words from '../../texts/explain.json' with { type: 'json' }
import { fill } from '../../texts/texts.ts'
import { RecordTitle } from '../resources/values.tsx'
import { usePolicies } from './access.tsx'

const SOURCE = /AccessPolicy\/(\S+) entry (\d+)/g
/** Shown for members whose policies name no types. */
const USUAL = ['Patient', 'Observation']
const MOST_TYPES = 30

export type PolicyNames = ReadonlyMap<string, string>

export function usePolicyNames(): PolicyNames {
  const named = usePolicies().found.map(({ id = '', name = '' }) => [id, name] as const)
  return new Map([...named, ...Object.entries(words.builtIn)])
}

/** Replaces "AccessPolicy/1 entry 0" by "entry 1 of policy Ward". */
export function plainSource(text: string, names: PolicyNames): string {
  const rule = new Map<string, string>(Object.entries(words.service)).get(text)
  if (rule !== undefined) return rule
  return text.replace(SOURCE, (_, id: string, place: string) =>
    fill(words.source, { number: Number(place) + 1, name: names.get(id) || id }),
  )
}

/** `member`: reference of a ProjectMembership. */
export function Overview({ member }: { readonly member: string }) {
  const { project } = useMe()
  const id = member.replace('ProjectMembership/', '')
  const found = useGet<ProjectMembership>(`admin/projects/${project.id}/members/${id}`)
  return (
    <Loaded query={found}>
      {({ accessPolicy, access = [] }) => {
        const given = [accessPolicy, ...access.map(({ policy }) => policy)]
        const ids = given.flatMap((one) => one?.reference?.split('/')[1] ?? [])
        return <Types member={member} policies={[...new Set(ids)]} />
      }}
    </Loaded>
  )
}

interface TypesProps {
  readonly member: string
  /** Ids. */
  readonly policies: readonly string[]
}

function Types({ member, policies }: TypesProps) {
  const [added, setAdded] = useState<readonly string[]>([])
  const types = useTypes()
  const query = `fhir/R4/AccessPolicy?_count=1000&_id=${policies.join(',')}`
  const found = useGet<Bundle<AccessPolicy>>(query, { enabled: policies.length > 0 })
  const entries = (found.data?.entry ?? []).flatMap(({ resource }) => resource?.resource ?? [])
  const named = entries.map(({ resourceType = '' }) => resourceType).filter((type) => type !== '*')
  const isNarrow = named.length > 0 && entries.length === named.length
  const usual = [...new Set([...named, ...(isNarrow ? [] : USUAL)])]
  const shown = [...new Set([...usual.slice(0, MOST_TYPES), ...added])]
  const left = usual.filter((type) => !shown.includes(type)).length
  if (policies.length > 0 && found.data === undefined) return <Problem error={found.error} />
  return (
    <Stack gap="xs">
      <List spacing={4} data-overview>
        {shown.map((type) => (
          <List.Item key={type}>
            <Sentence member={member} type={type} />
          </List.Item>
        ))}
      </List>
      {left > 0 && <Text size="sm">{fill(words.left, { count: left })}</Text>}
      {left === 0 && isNarrow && <Hint>{words.others}</Hint>}
      <Select
        label={words.addType}
        searchable
        data={(types.data ?? []).flatMap(({ type = '' }) => (shown.includes(type) ? [] : [type]))}
        value={null}
        onChange={(type) => type && setAdded([...added, type])}
        maw={320}
        data-add-type
      />
    </Stack>
  )
}

interface SentenceProps {
  readonly member: string
  readonly type: string
}

function Sentence({ member, type }: SentenceProps) {
  const names = usePolicyNames()
  const { data, error } = useQuery({
    queryKey: ['seen', member, type],
    queryFn: () => readSeen(member, type),
  })
  if (error) return <Problem error={error} />
  if (data === undefined) return <Text size="sm">{type} …</Text>
  const { seen, all, entries } = data
  if (seen === undefined) return <Text size="sm">{fill(words.nothing, { type })}</Text>
  if (entries.length === 0) return <Text size="sm">{fill(words.everything, { type, all })}</Text>
  return (
    <Text size="sm" component="div">
      {fill(words.some, { seen, all, type })}{' '}
      {entries.map(({ source, entry }, place) => (
        <span key={source}>
          {place > 0 && ` ${words.or} `}
          <Rule type={type} criteria={entry.criteria} />, {words.by} {plainSource(source, names)}
        </span>
      ))}
    </Text>
  )
}

interface Seen {
  /** Undefined when the member may not search the type. */
  readonly seen: number | undefined
  readonly all: number
  readonly entries: readonly { readonly source: string; readonly entry: AccessPolicyResource }[]
}

async function readSeen(member: string, type: string): Promise<Seen> {
  const explained: Promise<Parameters> = medplum.post('fhir/R4/AccessPolicy/$explain', {
    membership: member,
    search: `${type}?`,
  })
  const [{ parameter = [] }, { total = 0 }] = await Promise.all([
    explained,
    medplum.get<Bundle>(`fhir/R4/${type}?_summary=count&_total=accurate`, { cache: 'no-store' }),
  ])
  const entries = parameter.flatMap(({ name, part = [] }) =>
    name === 'entry' ? [toEntry(part)] : [],
  )
  return {
    seen: parameter.find(({ name }) => name === 'total')?.valueInteger,
    all: total,
    entries: entries.filter(({ entry }) => entry.interaction?.includes('search') ?? true),
  }
}

function toEntry(part: readonly ParametersParameter[]) {
  const text = (name: string) => part.find((one) => one.name === name)?.valueString
  const entry: AccessPolicyResource = JSON.parse(text('compiled') ?? '{}')
  return { source: text('source') ?? '', entry }
}

const REFERENCE = /^[A-Z][A-Za-z]+\/[A-Za-z0-9.-]{1,64}$/

interface RuleProps {
  readonly type: string
  readonly criteria: string | undefined
}

/** Criteria in words. */
function Rule({ type, criteria }: RuleProps) {
  const conditions = splitCriteria(criteria)
  if (conditions.length === 0) return <>{words.rule.all}</>
  return (
    <>
      {conditions.map((condition, place) => (
        <span key={condition.parameter + condition.value}>
          {place > 0 && ` ${words.rule.and} `}
          <ConditionText type={type} condition={condition} />
        </span>
      ))}
    </>
  )
}

interface ConditionProps {
  readonly type: string
  readonly condition: Condition
}

function ConditionText({ type, condition: { parameter, value } }: ConditionProps) {
  const isId = parameter === '_id' && !value.includes(',')
  const reference = isId ? `${type}/${value}` : REFERENCE.test(value) ? value : undefined
  const phrase = parameterPhrase(parameter)
  return (
    <>
      {phrase} {reference === undefined ? value : <RecordTitle reference={reference} />}
    </>
  )
}

/** `subject:Patient.organization` is "those whose subject has organization". */
function parameterPhrase(parameter: string): string {
  if (parameter === '_id') return words.rule.id
  if (parameter === '_compartment') return words.rule.compartment
  const steps = parameter.split('.')
  const last = steps.pop() ?? ''
  if (last.startsWith('_has:')) {
    const [, other = '', , searched = ''] = last.split(':')
    const [owned, plain] = [words.rule.ownerReferredTo, words.rule.referredTo]
    return fill(steps.length > 0 ? owned : plain, { owner: owners(steps), other, searched })
  }
  if (steps.length === 0) return fill(words.rule.parameter, { parameter: last })
  return fill(words.rule.chain, { owner: owners(steps), parameter: last })
}

function owners(steps: readonly string[]): string {
  return steps.map((step) => step.replace(/:.*/, '')).join(words.rule.owner)
}
