/** The shell of all pages: header, menu, and handling of ended sessions and failed pages. */
import {
  ActionIcon,
  Anchor,
  AppShell,
  Burger,
  Button,
  Group,
  Menu,
  Modal,
  NavLink,
  ScrollArea,
  Stack,
  Text,
  useComputedColorScheme,
  useMantineColorScheme,
} from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { useQueryClient } from '@tanstack/react-query'
import { Component, Suspense, useEffect, useSyncExternalStore } from 'react'
import { Link, Route, Switch, useLocation } from 'wouter'
import { type Me, openProject, sessionEnd, signOut, startSignIn, useMe } from './client/session.ts'
import { helpAddress } from './help.ts'
import { mayOpen, type PageEntry, pages } from './pages.ts'
import { Finder } from './parts/finder.tsx'
import { NotYours, Waiting } from './parts/loaded.tsx'
import { Page } from './parts/page.tsx'
import { texts } from './texts/texts.ts'

const product = document.body.dataset.product

export function Shell() {
  const [isOpen, { toggle, close }] = useDisclosure()
  const [location] = useLocation()
  const me = useMe()
  const queries = useQueryClient()
  // A new page closes the phone menu and scrolls to the top. Another view of a page shows its newest data.
  // biome-ignore lint/correctness/useExhaustiveDependencies: the address is the event.
  useEffect(() => {
    close()
    window.scrollTo(0, 0)
    void queries.refetchQueries({ type: 'active', stale: true }, { cancelRefetch: false })
  }, [location])
  return (
    <AppShell
      header={{ height: 56 }}
      navbar={{ width: 220, breakpoint: 'sm', collapsed: { mobile: !isOpen } }}
      padding="md"
    >
      <AppShell.Header>
        <Head isOpen={isOpen} toggle={toggle} />
      </AppShell.Header>
      <AppShell.Navbar p="xs" aria-label={texts.app.pages}>
        <ScrollArea type="never">
          <Navigation location={location} />
        </ScrollArea>
      </AppShell.Navbar>
      <AppShell.Main id="main">
        <Boundary location={location}>
          <Switch>
            {pages.map(({ path, Page: Shown }) => (
              <Route key={path} path={path}>
                {(params) =>
                  mayOpen(me, path) ? (
                    // Within the route: around it, an open dialog of the page before would stay until this one is loaded.
                    <Suspense fallback={<Waiting />}>
                      <Shown key={subjectKey(path, params)} />
                    </Suspense>
                  ) : (
                    <NotYours />
                  )
                }
              </Route>
            ))}
            <Route>
              <NotFound />
            </Route>
          </Switch>
        </Boundary>
      </AppShell.Main>
      <SessionEnd />
    </AppShell>
  )
}

/** Identifies the subject of a page. An optional parameter selects a view, which keeps the rest of the page and the focus. */
function subjectKey(path: string, params: Readonly<Record<string, string | undefined>>): string {
  const required = [...path.matchAll(/:(\w+)(?=\/|$)/g)]
  return required.map(([, name = '']) => params[name]).join('/')
}

interface HeadProps {
  readonly isOpen: boolean
  readonly toggle: () => void
}

function Head({ isOpen, toggle }: HeadProps) {
  const me = useMe()
  const [location] = useLocation()
  const found = pages.flatMap(({ path, menu }) =>
    menu?.shows(me)
      ? [{ href: menuAddress(path), title: menu.label, kind: texts.finder.page }]
      : [],
  )
  return (
    <Group h="100%" px="md" justify="space-between" wrap="nowrap">
      <Group gap="sm" wrap="nowrap" miw={0}>
        <Burger
          miw="max-content"
          opened={isOpen}
          onClick={toggle}
          hiddenFrom="sm"
          size="sm"
          aria-label={texts.app.menu}
        />
        <Anchor href="#main" className="skip-link">
          {texts.app.skip}
        </Anchor>
        <Text fw={700} component={Link} href="/" c="inherit" td="none">
          {product}
        </Text>
        <Projects />
      </Group>
      <Group gap="xs" wrap="nowrap">
        <Finder pages={found} />
        <Anchor href={helpAddress(location)} target="_blank" size="sm">
          {texts.app.help}
        </Anchor>
        <ThemeButton />
        <Account />
      </Group>
    </Group>
  )
}

/** The name of the project; a menu for a member of several. */
function Projects() {
  const { project, security } = useMe()
  const others = new Map(
    security?.memberships?.flatMap(({ project: { reference = '', display } = {} }) => {
      const id = reference.replace('Project/', '')
      return id === '' || id === project.id ? [] : [[id, display ?? id] as const]
    }),
  )
  if (others.size === 0) {
    return (
      <Text c="dimmed" truncate>
        {project.name}
      </Text>
    )
  }
  return (
    <Menu withInitialFocusPlaceholder={false}>
      <Menu.Target>
        <Button
          variant="default"
          size="compact-md"
          maw={220}
          title={texts.app.switchProject}
          data-project
        >
          {project.name}
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        {[...others].map(([id, name]) => (
          <Menu.Item key={id} onClick={() => void openProject(id)}>
            {name}
          </Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  )
}

function ThemeButton() {
  const { setColorScheme } = useMantineColorScheme()
  const scheme = useComputedColorScheme('light')
  return (
    <ActionIcon
      variant="subtle"
      color="gray"
      aria-label={texts.app.theme}
      onClick={() => setColorScheme(scheme === 'dark' ? 'light' : 'dark')}
    >
      {scheme === 'dark' ? '☀' : '☾'}
    </ActionIcon>
  )
}

function Account() {
  const me = useMe()
  return (
    <Menu withInitialFocusPlaceholder={false}>
      <Menu.Target>
        <Button
          variant="subtle"
          size="compact-md"
          maw={{ base: 110, sm: 180 }}
          px="xs"
          data-account
        >
          <Text truncate inherit>
            {signedInName(me)}
          </Text>
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item component={Link} href="/profile" data-profile>
          {texts.profile.title}
          {me.user?.email && (
            <Text size="xs" c="dimmed">
              {me.user.email}
            </Text>
          )}
        </Menu.Item>
        <Menu.Item onClick={() => void signOut()}>{texts.app.signOut}</Menu.Item>
      </Menu.Dropdown>
    </Menu>
  )
}

function signedInName({ membership: { profile } }: Me): string {
  return profile?.display ?? profile?.reference ?? ''
}

interface NavigationProps {
  readonly location: string
}

function Navigation({ location }: NavigationProps) {
  const me = useMe()
  const shown = pages.filter(({ menu }) => menu?.shows(me))
  const groups = Map.groupBy(shown, ({ menu }) => menu?.group)
  return (
    <Stack gap="xs">
      {[...groups].map(([group, entries]) => (
        <div key={group ?? ''}>
          {group && (
            <Text size="xs" c="dimmed" px="sm" fw={600}>
              {texts.groups[group]}
            </Text>
          )}
          {entries.map((entry) => (
            <Entry key={entry.path} entry={entry} location={location} />
          ))}
        </div>
      ))}
    </Stack>
  )
}

interface EntryProps extends NavigationProps {
  readonly entry: PageEntry
}

function Entry({ entry, location }: EntryProps) {
  const { menu } = entry
  const path = menuAddress(entry.path)
  const isHere = path === '/' ? location === '/' : `${location}/`.startsWith(`${path}/`)
  return (
    <NavLink
      component={Link}
      href={path}
      label={menu?.label}
      active={isHere}
      aria-current={isHere ? 'page' : undefined}
    />
  )
}

function menuAddress(path: string): string {
  return path.replace(/\/:.*$/, '')
}

function NotFound() {
  return (
    <Page title={texts.app.notFound} hint={texts.app.notFoundHint}>
      <div>
        <Button component={Link} href="/">
          {texts.app.toHome}
        </Button>
      </div>
    </Page>
  )
}

/** Overlays the page, so that typed text stays visible. */
function SessionEnd() {
  const isEnded = useSyncExternalStore(sessionEnd.subscribe, sessionEnd.isEnded)
  return (
    <Modal
      opened={isEnded}
      onClose={() => undefined}
      withCloseButton={false}
      title={texts.session.ended}
    >
      <Stack>
        <Text size="sm">{texts.session.endedHint}</Text>
        <Button onClick={() => void startSignIn()} data-autofocus>
          {texts.session.signIn}
        </Button>
      </Stack>
    </Modal>
  )
}

interface Props {
  /** An error ends when it changes. */
  readonly location: string
  readonly children: React.ReactNode
}

interface State {
  readonly error: unknown
}

class Boundary extends Component<Props, State> {
  override state: State = { error: undefined }

  static getDerivedStateFromError(error: unknown): State {
    return { error }
  }

  override componentDidUpdate(before: Props): void {
    const isElsewhere = before.location !== this.props.location
    if (isElsewhere && this.state.error !== undefined) this.setState({ error: undefined })
  }

  override render() {
    const { error } = this.state
    if (error === undefined) return this.props.children
    const fault = error instanceof Error ? error.message : String(error)
    const isOld = /import\w* (?:a )?module/i.test(fault)
    return (
      <Page
        title={isOld ? texts.app.newVersion : texts.app.failed}
        hint={isOld ? texts.app.newVersionHint : fault}
      >
        <div>
          <Button onClick={() => location.reload()}>{texts.app.reload}</Button>
        </div>
      </Page>
    )
  }
}
