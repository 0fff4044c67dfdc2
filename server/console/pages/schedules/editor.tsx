/** Sets, changes or removes the schedule of a bot, with the next runs before it is saved. */
import { Button, Chip, Group, List, NativeSelect, Stack, Text, TextInput } from '@mantine/core'
import type { Bot, Extension } from '@medplum/fhirtypes'
import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { replaceVersion, useGet, useSend } from '../../client/api.ts'
import { Problem } from '../../client/problem.tsx'
import { medplum, useMe } from '../../client/session.ts'
import { Confirm } from '../../parts/action.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import schedules from '../../texts/schedules.json' with { type: 'json' }
import { texts } from '../../texts/texts.ts'

const words = schedules.editor
const ZONE = 'urn:botica:bot-cron-timezone'
const IS_ZONE = /(?:^urn:botica:|\/fhir\/StructureDefinition\/)bot-cron-timezone$/

/** Numbers of cron. */
const WEEKDAYS = ['1', '2', '3', '4', '5', '6', '0'] as const

interface Preview {
  readonly cron: string
  readonly zone: string
  readonly next: readonly string[]
}

interface Props {
  readonly botId: string
  readonly after?: () => void
}

export function ScheduleEditor({ botId, after }: Props) {
  const bot = useGet<Bot>(`fhir/R4/Bot/${botId}`, { isExact: true })
  const { project } = useMe()
  const isPlanned = bot.data?.cronString !== undefined || bot.data?.cronTiming !== undefined
  const path = `admin/projects/${project.id}/schedules/preview`
  // Also reads a cronTiming, as the service does.
  const stored = useQuery({
    queryKey: ['stored-schedule', botId, bot.data?.meta?.versionId],
    queryFn: () => medplum.post(path, bot.data) as Promise<Preview>,
    enabled: isPlanned,
    // Another version with the same schedule must not discard a choice.
    placeholderData: keepPreviousData,
  })
  return (
    <Loaded query={bot}>
      {(data) =>
        isPlanned ? (
          <Loaded query={stored}>
            {({ cron, zone }) => (
              <Fields key={`${cron} ${zone}`} bot={data} cron={cron} zone={zone} after={after} />
            )}
          </Loaded>
        ) : (
          <Fields bot={data} after={after} />
        )
      }
    </Loaded>
  )
}

interface FieldsProps {
  readonly bot: Bot
  readonly cron?: string
  readonly zone?: string
  readonly after: (() => void) | undefined
}

function Fields({ bot, cron, zone, after }: FieldsProps) {
  const [choice, setChoice] = useState(cron === undefined ? FIRST_CHOICE : fromCron(cron))
  const [inZone, setZone] = useState(zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone)
  const planned = withSchedule(bot, toCron(choice), inZone)
  const path = `fhir/R4/Bot/${bot.id}`
  const save = useSend<Bot>({
    send: (body) => replaceVersion(path, body, bot.meta?.versionId),
    done: texts.common.saved,
    notify: false,
    after: () => after?.(),
    // The next attempt changes the newest version, such as one that was deployed meanwhile.
    reread: [path],
  })
  return (
    <Stack gap="sm" maw={560}>
      <Choices choice={choice} set={(change) => setChoice({ ...choice, ...change })} />
      <TextInput
        label={words.zone}
        value={inZone}
        onChange={({ currentTarget: { value } }) => setZone(value)}
      />
      <NextRuns bot={planned} />
      <Problem error={save.error} />
      <Group>
        <Button onClick={() => save.mutate(planned)} loading={save.isPending} id="save-schedule">
          {words.save}
        </Button>
        {cron !== undefined && (
          <Confirm
            label={words.remove}
            confirm={words.remove}
            onConfirm={() => save.mutate(withoutSchedule(bot))}
          >
            <Text size="sm">{words.removeHint}</Text>
          </Confirm>
        )}
      </Group>
    </Stack>
  )
}

interface ChoicesProps {
  readonly choice: Choice
  readonly set: (change: Partial<Choice>) => void
}

function Choices({ choice, set }: ChoicesProps) {
  const { kind } = choice
  const text = (name: 'time' | 'day' | 'cron') => ({
    name,
    label: words[name],
    value: choice[name],
    onChange: ({ currentTarget: { value } }: { currentTarget: { value: string } }) =>
      set({ [name]: value }),
  })
  return (
    <>
      <NativeSelect
        name="kind"
        label={words.repeat}
        value={kind}
        onChange={({ currentTarget: { value } }) =>
          set({ kind: value as Kind, cron: toCron(choice) })
        }
        data={KINDS.map((value) => ({ value, label: words.kinds[value] }))}
      />
      {kind === 'minutes' && (
        <NativeSelect
          name="minutes"
          label={words.minutes}
          value={choice.minutes}
          onChange={({ currentTarget: { value } }) => set({ minutes: value })}
          data={MINUTES}
        />
      )}
      {kind === 'weekly' && (
        <Chip.Group
          multiple
          value={[...choice.days]}
          onChange={(days) => set({ days: days.length === 0 ? choice.days : days })}
        >
          <Group gap="xs" role="group" aria-label={words.days}>
            {WEEKDAYS.map((value) => (
              <Chip key={value} value={value} size="xs">
                {words.weekdays[value]}
              </Chip>
            ))}
          </Group>
        </Chip.Group>
      )}
      {kind === 'monthly' && <TextInput type="number" min={1} max={31} {...text('day')} />}
      {kind === 'custom' ? (
        <TextInput description={words.cronHint} {...text('cron')} />
      ) : (
        kind !== 'minutes' && <TextInput type="time" {...text('time')} />
      )}
    </>
  )
}

/** The service's own reckoning, in the reader's zone. */
function NextRuns({ bot }: { readonly bot: Bot }) {
  const { project } = useMe()
  const { cronString, extension } = bot
  const preview = useQuery({
    queryKey: ['schedule-preview', cronString, extension],
    queryFn: () =>
      medplum.post(`admin/projects/${project.id}/schedules/preview`, {
        cronString,
        extension,
      }) as Promise<Preview>,
    placeholderData: keepPreviousData,
    retry: false,
  })
  if (preview.error) return <Problem error={preview.error} title={words.wrong} />
  return (
    <section aria-live="polite" id="next-runs">
      <Text size="sm" fw={500}>
        {words.next}
      </Text>
      <List size="sm">
        {(preview.data?.next ?? []).map((time) => (
          <List.Item key={time}>{moment.format(new Date(time))}</List.Item>
        ))}
      </List>
    </section>
  )
}

const moment = new Intl.DateTimeFormat(undefined, {
  dateStyle: 'full',
  timeStyle: 'short',
})

function withoutSchedule({ cronString: _, cronTiming: __, extension, ...bot }: Bot): Bot {
  const kept = (extension ?? []).filter(({ url }: Extension) => !IS_ZONE.test(url))
  return kept.length === 0 ? bot : { ...bot, extension: kept }
}

function withSchedule(bot: Bot, cronString: string, zone: string): Bot {
  const rest = withoutSchedule(bot)
  const extension = [...(rest.extension ?? []), { url: ZONE, valueString: zone }]
  return { ...rest, cronString, extension }
}

const KINDS = ['minutes', 'daily', 'weekly', 'monthly', 'custom'] as const
type Kind = (typeof KINDS)[number]
/** Divisors of an hour: others would leave uneven gaps. */
const MINUTES = ['1', '2', '5', '10', '15', '20', '30', '60']

interface Choice {
  readonly kind: Kind
  /** For `minutes`. */
  readonly minutes: string
  /** `hh:mm` */
  readonly time: string
  /** For `weekly`: 0 is Sunday. */
  readonly days: readonly string[]
  /** For `monthly`: 1 to 31. */
  readonly day: string
  readonly cron: string
}

const FIRST_CHOICE: Choice = {
  kind: 'daily',
  minutes: '15',
  time: '06:00',
  days: ['1'],
  day: '1',
  cron: '',
}

function toCron({ kind, minutes, time, days, day, cron }: Choice): string {
  const [hour, minute] = time.split(':').map(Number)
  const at = `${minute} ${hour}`
  if (kind === 'minutes') return minutes === '60' ? '0 * * * *' : `*/${minutes} * * * *`
  if (kind === 'daily') return `${at} * * *`
  if (kind === 'weekly') return `${at} * * ${days.toSorted().join()}`
  return kind === 'monthly' ? `${at} ${day} * *` : cron
}

/** Returns the choices that become this schedule; `custom` for all others. */
function fromCron(cron: string): Choice {
  const every = /^\*\/(\d+) \* \* \* \*$/.exec(cron)?.[1] ?? (cron === '0 * * * *' ? '60' : '')
  if (MINUTES.includes(every)) return { ...FIRST_CHOICE, kind: 'minutes', minutes: every, cron }
  const fields = /^(\d{1,2}) (\d{1,2}) (\*|\d{1,2}) \* (\*|[0-6](?:,[0-6])*)$/.exec(cron)
  const [, minute = '', hour = '', day = '*', days = '*'] = fields ?? []
  const time = `${hour.padStart(2, '0')}:${minute.padStart(2, '0')}`
  if (fields === null || (day !== '*' && days !== '*')) {
    return { ...FIRST_CHOICE, kind: 'custom', cron }
  }
  if (days !== '*') return { ...FIRST_CHOICE, kind: 'weekly', time, days: days.split(','), cron }
  if (day !== '*') return { ...FIRST_CHOICE, kind: 'monthly', time, day, cron }
  return { ...FIRST_CHOICE, kind: 'daily', time, cron }
}
