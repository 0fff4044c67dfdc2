/** The project itself: what it is set to, its secrets, where it is served, its limits and what it uses of them. */
import { Badge, Box, Group, Progress, Stack, Text } from '@mantine/core'
import type { ProjectSetting, ProjectSite } from '@medplum/fhirtypes'
import { useParams } from 'wouter'
import { useGet } from '../../api.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { type Stored, sizeOf } from '../../parts/stored.ts'
import { DataTable } from '../../parts/table.tsx'
import { Views } from '../../parts/tabs.tsx'
import { useMe } from '../../session.ts'
import { fill, texts } from '../../texts/texts.ts'
import { Parameters } from './parameters.tsx'
import { Secrets } from './secrets.tsx'
import { Settings } from './settings.tsx'
import { Sites } from './sites.tsx'

const words = texts.project
const TABS = ['settings', 'secrets', 'sites', 'parameters', 'limits'] as const

/** The answer of `admin/projects/:id`. */
export interface ProjectAnswer {
  readonly project: {
    readonly id: string
    readonly name?: string
    readonly secret?: readonly ProjectSetting[]
    readonly setting?: readonly ProjectSetting[]
    readonly systemSetting?: readonly ProjectSetting[]
    readonly site?: readonly ProjectSite[]
    readonly features?: readonly string[]
  }
  /** Load units of this minute, where there is a quota. */
  readonly load?: { readonly memberLimit: number; readonly limit: number; readonly used: number }
}

export function ProjectPage() {
  const { tab: asked } = useParams<{ tab?: string }>()
  const tab = TABS.find((name) => name === asked) ?? 'settings'
  const { project } = useMe()
  const found = useGet<ProjectAnswer>(`admin/projects/${project.id}`)
  return (
    <Page title={words.title} hint={project.name}>
      <Views names={TABS} labels={words.tabs} open={tab} address="/project">
        <Box maw={900}>
          <Loaded query={found}>{(answer) => <Panel tab={tab} answer={answer} />}</Loaded>
        </Box>
      </Views>
    </Page>
  )
}

interface PanelProps {
  readonly tab: (typeof TABS)[number]
  readonly answer: ProjectAnswer
}

function Panel({ tab, answer }: PanelProps) {
  const { id, setting = [], secret = [], site = [] } = answer.project
  const address = `admin/projects/${id}`
  if (tab === 'secrets') return <Secrets address={address} secrets={secret} />
  if (tab === 'sites') return <Sites address={address} sites={site} />
  if (tab === 'parameters') return <Parameters />
  if (tab === 'limits') return <Limits answer={answer} />
  return <Settings address={address} settings={setting} />
}

type Limit = keyof typeof words.limits

function Limits({ answer: { project, load } }: Pick<PanelProps, 'answer'>) {
  const { features = [], systemSetting = [] } = project
  // The file of texts has no other names.
  const names = Object.keys(words.limits) as Limit[]
  const { data: stored } = useGet<Stored>(`admin/projects/${project.id}/storage`)
  return (
    <Stack>
      {stored && (
        <div>
          <Text fw={600}>{words.storage}</Text>
          <Text size="sm">
            {fill(words.stored, { size: sizeOf(stored), versions: stored.versions })}
          </Text>
        </div>
      )}
      <div>
        <Text fw={600}>{words.features}</Text>
        <Text size="sm" c="dimmed">
          {words.featuresHint}
        </Text>
        <Group gap="xs" mt="xs">
          {features.length === 0 && texts.common.nothing}
          {features.map((feature) => (
            <Badge key={feature} variant="light" tt="none">
              {feature}
            </Badge>
          ))}
        </Group>
      </div>
      {load && <Load load={load} />}
      <DataTable
        label={words.tabs.limits}
        rows={names}
        keyOf={(name) => name}
        columns={[
          { name: words.name, cell: (name) => name },
          { name: words.meaning, cell: (name) => words.limits[name].meaning },
          {
            name: words.value,
            cell: (name) =>
              shown(systemSetting.find((one) => one.name === name)) ?? words.limits[name].default,
          },
        ]}
      />
    </Stack>
  )
}

interface LoadProps {
  readonly load: NonNullable<ProjectAnswer['load']>
}

function Load({ load: { used, limit } }: LoadProps) {
  const share = limit > 0 ? Math.min(100, (100 * used) / limit) : 0
  return (
    <div>
      <Text fw={600}>{words.load}</Text>
      <Progress value={share} my={4} aria-label={words.load} />
      <Text size="sm">{fill(words.used, { used, limit })}</Text>
    </div>
  )
}

/** A value as it is stored; undefined where there is none. */
export function shown(setting: ProjectSetting | undefined): string | undefined {
  const { valueString, valueBoolean, valueInteger, valueDecimal } = setting ?? {}
  const value = valueString ?? valueBoolean ?? valueInteger ?? valueDecimal
  return value === undefined ? undefined : String(value)
}
