/** The project: settings, secrets, mail server, sites, limits and usage. */
import {
  Badge,
  Box,
  Group,
  NativeSelect,
  Progress,
  Stack,
  Text,
  Textarea,
  TextInput,
} from '@mantine/core'
import type { ProjectSetting, ProjectSite, SearchParameter } from '@medplum/fhirtypes'
import { useParams } from 'wouter'
import { useGet } from '../../client/api.ts'
import { changedNames } from '../../client/merging.ts'
import { medplum, useMe } from '../../client/session.ts'
import { ConfirmedAction } from '../../parts/action.tsx'
import { Form } from '../../parts/form.tsx'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Page, Views } from '../../parts/page.tsx'
import { RecordTable } from '../../parts/query-table.tsx'
import { DataTable } from '../../parts/table.tsx'
import { Hint } from '../../parts/text.tsx'
import words from '../../texts/project.json' with { type: 'json' }
import { fill, formatStoredSize, type Stored, texts } from '../../texts/texts.ts'
import { changeList, withItems } from './lists.ts'
import { Mail } from './mail.tsx'
import { Secrets } from './secrets.tsx'
import { SettingKey } from './setting-key.tsx'

const TABS = ['settings', 'secrets', 'mail', 'sites', 'parameters', 'limits'] as const

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
  readonly load?: { readonly memberLimit: number; readonly limit: number; readonly used: number }
}

export function ProjectPage() {
  const { tab: asked } = useParams<{ tab?: string }>()
  const tab = TABS.find((name) => name === asked) ?? 'settings'
  const { project } = useMe()
  const found = useGet<ProjectAnswer>(`admin/projects/${project.id}`)
  return (
    <Page title={texts.project.title} hint={project.name}>
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
  if (tab === 'mail') return <Mail address={address} settings={setting} secrets={secret} />
  if (tab === 'sites') return <Sites address={address} sites={site} />
  if (tab === 'parameters') return <Parameters />
  if (tab === 'limits') return <Limits answer={answer} />
  return <Settings address={address} settings={setting} />
}

type Limit = keyof typeof words.limits

function Limits({ answer: { project, load } }: Pick<PanelProps, 'answer'>) {
  const { features = [], systemSetting = [] } = project
  const names = Object.keys(words.limits) as Limit[]
  const { data: stored } = useGet<Stored>(`admin/projects/${project.id}/storage`)
  return (
    <Stack>
      {stored && (
        <div>
          <Text fw={600}>{words.storage}</Text>
          <Text size="sm">
            {fill(words.stored, { size: formatStoredSize(stored), versions: stored.versions })}
          </Text>
        </div>
      )}
      <div>
        <Text fw={600}>{words.features}</Text>
        <Hint>{words.featuresHint}</Hint>
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
        rowKey={(name) => name}
        columns={[
          {
            name: words.name,
            cell: (name) => (
              <>
                {words.limits[name].label}
                <SettingKey name={name} />
              </>
            ),
          },
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

function Load({ load: { used, limit } }: { readonly load: NonNullable<ProjectAnswer['load']> }) {
  const share = limit > 0 ? Math.min(100, (100 * used) / limit) : 0
  return (
    <div>
      <Text fw={600}>{words.load}</Text>
      <Progress value={share} my={4} aria-label={words.load} />
      <Text size="sm">{fill(words.used, { used, limit })}</Text>
    </div>
  )
}

export function shown(setting: ProjectSetting | undefined): string | undefined {
  const { valueString, valueBoolean, valueInteger, valueDecimal } = setting ?? {}
  const value = valueString ?? valueBoolean ?? valueInteger ?? valueDecimal
  return value === undefined ? undefined : String(value)
}

type Name = keyof typeof words.settings

/** Allowed values; unlisted settings are free text. */
const CHOICES: Readonly<Partial<Record<Name, readonly string[]>>> = {
  validateTerminology: ['off'],
  validateQuestionnaireResponse: ['refuse'],
  fullTextSearch: ['true', 'false'],
  preCommitSubscriptionsEnabled: ['true', 'false'],
  BOT_INPUT_ARCHIVE: ['true', 'false'],
  autoDownloadEnabled: ['true', 'false'],
}
const NAMES = Object.keys(words.settings) as Name[]

interface SettingsProps {
  readonly address: string
  readonly settings: readonly ProjectSetting[]
}

function Settings({ address, settings }: SettingsProps) {
  const saved = Object.fromEntries(NAMES.map((name) => [name, settingText(settings, name)]))
  return (
    <Form
      name="project-settings"
      saved={saved}
      send={(values, { base }) => {
        const names = [...changedNames(base, values)]
        const next = given(values).filter(({ name }) => names.includes(name))
        return changeList(address, 'setting', (all) => withItems(all, names, next))
      }}
      done={texts.common.saved}
    >
      {({ text }) =>
        NAMES.map((name) => {
          const { label, meaning, default: usual } = words.settings[name]
          const choices = CHOICES[name]
          const description = (
            <>
              {meaning} <SettingKey name={name} />
            </>
          )
          const common = { label, description, ...text(name) }
          return choices ? (
            <NativeSelect
              key={name}
              {...common}
              data={[{ value: '', label: `${words.default}: ${usual}` }, ...choices]}
            />
          ) : (
            <TextInput key={name} {...common} placeholder={usual} />
          )
        })
      }
    </Form>
  )
}

function settingText(settings: readonly ProjectSetting[], wanted: string): string {
  const found = settings.find(({ name }) => name === wanted)
  return String(found?.valueString ?? found?.valueBoolean ?? '')
}

function given(values: Readonly<Record<string, string>>): ProjectSetting[] {
  return Object.entries(values).flatMap(([name, value]): ProjectSetting[] => {
    if (value.trim() === '') return []
    const isFlag = value === 'true' || value === 'false'
    return [isFlag ? { name, valueBoolean: value === 'true' } : { name, valueString: value }]
  })
}

const none = { code: '', base: '', type: 'string', expression: '' }

function Parameters() {
  return (
    <Stack>
      <Hint>{words.parametersHint}</Hint>
      <RecordTable<SearchParameter>
        label={words.tabs.parameters}
        search="SearchParameter?_count=200"
        linkOf={({ id }) => `/resources/SearchParameter/${id}`}
        empty={<Empty title={words.noParameters} hint={words.noParametersHint} />}
        columns={[
          { name: words.code, cell: ({ code }) => code },
          { name: words.base, cell: ({ base }) => base?.join(', ') },
          { name: words.type, cell: ({ type }) => type },
          { name: words.expression, cell: ({ expression }) => expression },
        ]}
      />
      <Text fw={600}>{words.addParameter}</Text>
      <Form name="search-parameter" saved={none} send={create} done={texts.common.saved}>
        {({ text }) => (
          <>
            <Group grow align="start">
              <TextInput label={words.code} placeholder="eye-color" {...text('code')} />
              <TextInput label={words.base} placeholder="Patient" {...text('base')} />
              <TextInput label={words.type} placeholder="string" {...text('type')} />
            </Group>
            <TextInput
              label={words.expression}
              placeholder="Patient.extension('…').value"
              {...text('expression')}
            />
          </>
        )}
      </Form>
    </Stack>
  )
}

async function create({ code, base, type, expression }: typeof none): Promise<unknown> {
  return await medplum.post('fhir/R4/SearchParameter', {
    resourceType: 'SearchParameter',
    url: `${location.origin}/SearchParameter/${base}-${code}`,
    name: code,
    description: code,
    status: 'active',
    code,
    base: base.split(/[\s,]+/).filter((name) => name !== ''),
    type,
    expression,
  })
}

const nowhere = { site: '', domain: '', googleClientId: '', recaptchaSiteKey: '' }

interface SitesProps {
  readonly address: string
  readonly sites: readonly ProjectSite[]
}

function Sites({ address, sites }: SitesProps) {
  return (
    <Stack>
      <DataTable
        label={words.tabs.sites}
        rows={sites}
        rowKey={({ name = '' }) => name}
        empty={<Empty title={words.noSites} hint={words.noSitesHint} />}
        columns={[
          { name: words.name, cell: ({ name }) => name },
          { name: words.domains, cell: ({ domain }) => domain.join(', ') },
          {
            name: words.actions,
            cell: (site) => (
              <ConfirmedAction
                label={texts.common.delete}
                confirm={texts.common.delete}
                send={() => changeList(address, 'site', (all) => withoutSite(all, site))}
                done={texts.common.saved}
                reread={[address]}
              >
                <Text size="sm">{fill(words.deleteSite, { name: site.name ?? '' })}</Text>
              </ConfirmedAction>
            ),
          },
        ]}
      />
      <Text fw={600}>{words.addSite}</Text>
      <Form
        name="project-site"
        saved={nowhere}
        send={(values) => changeList(address, 'site', (all) => [...all, toProjectSite(values)])}
        done={texts.common.saved}
      >
        {({ text }) => (
          <>
            <TextInput label={words.name} {...text('site')} />
            <Textarea
              label={words.domains}
              description={words.domainsHint}
              autosize
              minRows={2}
              {...text('domain')}
            />
            <Group grow align="start">
              <TextInput label={words.googleClientId} {...text('googleClientId')} />
              <TextInput label={words.recaptchaSiteKey} {...text('recaptchaSiteKey')} />
            </Group>
          </>
        )}
      </Form>
    </Stack>
  )
}

/** Errors: the site is no longer the shown one; names are not unique. */
function withoutSite(all: readonly ProjectSite[], site: ProjectSite): readonly ProjectSite[] {
  const text = JSON.stringify(site)
  const place = all.findIndex((one) => JSON.stringify(one) === text)
  if (place < 0) throw new Error(words.siteChanged)
  return all.toSpliced(place, 1)
}

function toProjectSite({
  site,
  domain,
  googleClientId,
  recaptchaSiteKey,
}: typeof nowhere): ProjectSite {
  return {
    name: site,
    domain: domain.split(/\s+/).filter((name) => name !== ''),
    ...(googleClientId === '' ? {} : { googleClientId }),
    ...(recaptchaSiteKey === '' ? {} : { recaptchaSiteKey }),
  }
}
